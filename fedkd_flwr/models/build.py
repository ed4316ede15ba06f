"""Building models by name."""

from pkgutil import resolve_name

from torch import nn

from fedkd_flwr.custom_objects.importing import is_custom
from fedkd_flwr.models.custom_models import build_own
from fedkd_flwr.models.darts.search_space import SearchSpace
from fedkd_flwr.models.registry import ANY_SHAPE, DARTS_MODELS, MODELS, model_name
from fedkd_flwr.models.sample_shapes import Shape


def build_model(
    name: str, shape: Shape, classes: int, search_space: SearchSpace | None = None
) -> nn.Module:
    """Build a model with new weights, drawn from PyTorch's global generator.

    Parameters
    ----------
    name : str
        A key of `MODELS`, or a custom model as ``module:object``.
    shape : tuple of int
        Channels, height and width of an image. Custom models may take samples of any shape.
    classes : int
        Number of classes, at least 2.
    search_space : SearchSpace, optional
        Size of ``darts`` and ``darts-fixed``. The default is the paper's.

    Returns
    -------
    nn.Module
        Maps float32 samples (N, *shape) to logits (N, classes).

    Raises
    ------
    ValueError
        If the name is unknown, the model does not take the shape, there are fewer than two
        classes, or a custom model does not meet the requirements of `build_own`.
    """
    try:
        model_name(name)
    except ValueError as error:
        raise ValueError(f"model {name!r} {error}") from None
    is_image = len(shape) == 3
    takes_any = is_custom(name) or name in ANY_SHAPE
    if not shape or min(shape) < 1 or not (is_image or takes_any):
        raise ValueError(
            f"an image shape is (channels, height, width), each at least 1, got {tuple(shape)}: "
            f"model {name!r} takes no other samples"
        )
    if classes < 2:
        raise ValueError(f"a model needs at least 2 classes, got {classes}")
    if is_custom(name):
        return build_own(name, shape, classes)
    further = (search_space or SearchSpace(),) if name in DARTS_MODELS else ()
    model: nn.Module = resolve_name(MODELS[name])(shape, classes, *further)
    return model


def num_parameters(model: nn.Module) -> int:
    """Count the parameters of a model. Running statistics are not included.

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
