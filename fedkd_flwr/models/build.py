"""Models from their names."""

from pkgutil import resolve_name

from torch import nn

from fedkd_flwr.models.common import Shape
from fedkd_flwr.models.darts.search_space import SearchSpace
from fedkd_flwr.models.own import build_own
from fedkd_flwr.models.registry import ANY_SHAPE, DARTS_MODELS, MODELS, model_name
from fedkd_flwr.own import is_own


def build_model(
    name: str, shape: Shape, classes: int, search_space: SearchSpace | None = None
) -> nn.Module:
    """Build a model with fresh weights, drawn from torch's global generator.

    Parameters
    ----------
    name : str
        A key of `MODELS`, or an own model as ``module:object``.
    shape : tuple of int
        Channels, height and width of an image; own models take samples of any shape.
    classes : int
        Number of classes, at least 2.
    search_space : SearchSpace, optional
        Size of ``darts`` and ``darts-fixed``, the paper's if left out.

    Returns
    -------
    nn.Module
        Maps float32 samples (N, *shape) to logits (N, classes).

    Raises
    ------
    ValueError
        If the name is unknown, the shape is none that the model takes, there are fewer than two
        classes, or an own model is not what `build_own` asks for.
    """
    try:
        model_name(name)
    except ValueError as error:
        raise ValueError(f"model {name!r} {error}") from None
    is_image = len(shape) == 3
    takes_any = is_own(name) or name in ANY_SHAPE
    if not shape or min(shape) < 1 or not (is_image or takes_any):
        raise ValueError(
            f"an image shape is (channels, height, width), each at least 1, got {tuple(shape)}: "
            f"model {name!r} takes no other samples"
        )
    if classes < 2:
        raise ValueError(f"a model needs at least 2 classes, got {classes}")
    if is_own(name):
        return build_own(name, shape, classes)
    further = (search_space or SearchSpace(),) if name in DARTS_MODELS else ()
    model: nn.Module = resolve_name(MODELS[name])(shape, classes, *further)
    return model


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
