"""The models by name. A new model is one builder and one line in `MODELS`."""

from collections.abc import Callable

from torch import nn

from fedkd_flwr.models import small, torchvision_models
from fedkd_flwr.models.common import Shape
from fedkd_flwr.models.darts import SearchSpace

MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "lenet": small.lenet,
    "alexnet": torchvision_models.alexnet,
    "resnet18": torchvision_models.resnet18,
    "shufflenetv2": torchvision_models.shufflenetv2,
    "vgg11": torchvision_models.vgg11,
    "vgg13": torchvision_models.vgg13,
    "cnn": small.cnn,
    "cnn-ckt": small.cnn_ckt,
    "cnn-persfl": small.cnn_persfl,
    "mlp": small.mlp,
    "darts": SearchSpace().supernet,
    "darts-fixed": SearchSpace().fixed_network,
}
"""Builder of each model, from an image shape and a number of classes."""

DARTS_MODELS = ("darts", "darts-fixed")
"""Models whose every operation is normalized; evaluated with fresh statistics."""


def build_model(
    name: str, shape: Shape, classes: int, search_space: SearchSpace | None = None
) -> nn.Module:
    """Build a model with fresh weights, drawn from torch's global generator.

    Parameters
    ----------
    name : str
        A key of `MODELS`.
    shape : tuple of int
        Channels, height and width of an image.
    classes : int
        Number of classes, at least 2.
    search_space : SearchSpace, optional
        Size of ``darts`` and ``darts-fixed``, the paper's if left out.

    Returns
    -------
    nn.Module
        Maps float32 images (N, channels, height, width) to logits (N, classes).

    Raises
    ------
    ValueError
        If the name is unknown, the shape is not three positive numbers or too small for the
        model, or there are fewer than two classes.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; choose one of {', '.join(MODELS)}")
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(
            f"an image shape is (channels, height, width), each at least 1, got {tuple(shape)}"
        )
    if classes < 2:
        raise ValueError(f"a model needs at least 2 classes, got {classes}")
    if search_space and name == "darts":
        return search_space.supernet(shape, classes)
    if search_space and name == "darts-fixed":
        return search_space.fixed_network(shape, classes)
    return MODELS[name](shape, classes)


def num_parameters(model: nn.Module) -> int:
    """Count the trainable numbers of a model; running statistics are not among them.

    Parameters
    ----------
    model : nn.Module
        Any model.

    Returns
    -------
    int
        Sum of the sizes of its parameters.
    """
    return sum(parameter.numel() for parameter in model.parameters())
