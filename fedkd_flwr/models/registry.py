"""The models by name, and which client has which; to add one, add a line to `MODELS`."""

from collections.abc import Sequence

import numpy as np

from fedkd_flwr.custom_objects.importing import is_custom
from strategies.core.randomness import random_generator
from strategies.core.settings_groups import NoneOfTheAllowedError

MODELS: dict[str, str] = {
    "lenet": "fedkd_flwr.models.small:lenet",
    "alexnet": "fedkd_flwr.models.small:alexnet",
    "resnet18": "fedkd_flwr.models.torchvision_models:resnet18",
    "shufflenetv2": "fedkd_flwr.models.torchvision_models:shufflenetv2",
    "vgg11": "fedkd_flwr.models.torchvision_models:vgg11",
    "vgg13": "fedkd_flwr.models.torchvision_models:vgg13",
    "cnn": "fedkd_flwr.models.small:cnn",
    "cnn-ckt": "fedkd_flwr.models.small:cnn_ckt",
    "cnn-persfl": "fedkd_flwr.models.small:cnn_persfl",
    "mlp": "fedkd_flwr.models.small:mlp",
    "darts": "fedkd_flwr.models.darts:Supernet",
    "darts-fixed": "fedkd_flwr.models.darts:FixedNetwork",
}
"""Where each model's builder is; it takes an image shape and a number of classes.

A builder is imported when its model is built, so this module imports none.
"""

SMALLEST_SIDES = {
    "alexnet": 8,
    "resnet18": 8,
    "shufflenetv2": 8,
    "vgg11": 16,
    "vgg13": 16,
    "cnn": 4,
    "cnn-ckt": 16,
    "cnn-persfl": 16,
}
"""Smallest height and width of images for a model; 1 for the others.

That of torchvision's networks is half of the factor by which they reduce images. With smaller
images their last stages would have a single pixel.
"""

DARTS = "darts"  # the name of the supernet

DARTS_MODELS = (DARTS, "darts-fixed")
"""Models with a search space, which their builders take as a further argument."""

ANY_SHAPE = ("mlp",)
"""Models that take samples of any shape. The others take images."""

ALLOWED = [*MODELS, "or your own as module:object"]  # allowed names, for error messages


def model_name(name: str) -> str:
    """Return a name after checking that it is one of `MODELS`, or ``module:object``."""
    if name in MODELS or is_custom(name):
        return name
    module, _, member = name.rpartition(".")
    if is_custom(f"{module}:{member}"):
        raise ValueError(f"{name!r} is unknown; did you mean {module}:{member}?")
    raise NoneOfTheAllowedError(ALLOWED, name)


def assign_models(
    models: Sequence[str],
    rule: str,
    num_clients: int,
    sizes: Sequence[int] = (),
    seed: int = 0,
) -> list[str]:
    """Return the name of every client's model, (N,).

    ``"cyclic"``: in turn. ``"blocks"``: the first clients get the first model, and so on, in blocks
    whose lengths differ by at most one. ``"by-size"``: random, with larger models, which come
    first, more likely for larger data sets (PerFed-CKT, section 5, gives no formula). Client n gets
    model ``m ~ Binomial(M - 1, 1 - u_n)`` of M; ``u_n`` is the share of clients with less data,
    where those with as much, including itself, count half.
    """
    clients = np.arange(num_clients)
    if rule == "cyclic":
        chosen = clients % len(models)
    elif rule == "blocks":
        chosen = clients * len(models) // num_clients
    else:
        ordered = np.sort(sizes)
        below, up_to = (np.searchsorted(ordered, sizes, side) for side in ("left", "right"))
        shares = (below + up_to) / (2 * num_clients)
        chosen = random_generator(seed, "models").binomial(len(models) - 1, 1 - shares)
    return [models[int(index)] for index in chosen]
