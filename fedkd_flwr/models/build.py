"""Models from their names."""

from pkgutil import resolve_name

from torch import nn

from fedkd_flwr.models.common import Shape
from fedkd_flwr.models.darts.search_space import SearchSpace
from fedkd_flwr.models.registry import DARTS_MODELS, MODELS


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
