"""Building models by name, and finding out whether they fit the samples of custom data."""

from pkgutil import resolve_name

import torch
from torch import nn

from fedkd_flwr.custom_objects.importing import is_custom
from fedkd_flwr.data.registry import Shape
from fedkd_flwr.models.custom_models import build_custom_model
from fedkd_flwr.models.darts.genotype import SearchSpace
from fedkd_flwr.models.registry import ANY_SHAPE, DARTS_MODELS, MODELS, SMALLEST_SIDES, model_name


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
        classes, or a custom model does not meet the requirements of `build_custom_model`.

    Examples
    --------
    >>> fedkd_flwr.build_model("mlp", (1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    try:
        model_name(name)
    except ValueError as error:
        raise ValueError(f"model {error}") from None
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
        return build_custom_model(name, shape, classes)
    smallest = SMALLEST_SIDES.get(name, 1)
    if min(shape[1:], default=1) < smallest:
        raise ValueError(
            f"model {name!r} needs images of at least {smallest}x{smallest} pixels, "
            f"got {shape[1]}x{shape[2]}"
        )
    further = (search_space or SearchSpace(),) if name in DARTS_MODELS else ()
    model: nn.Module = resolve_name(MODELS[name])(shape, classes, *further)
    return model


def num_parameters(model: nn.Module) -> int:
    """Count the parameters of a model. Running statistics are not included."""
    return sum(parameter.numel() for parameter in model.parameters())


def build_fitting(
    name: str, shape: Shape, classes: int, search_space: SearchSpace | None = None
) -> nn.Module:
    """Build a model that takes samples of a shape; refuse others, with the models that do."""
    if is_custom(name):
        return build_model(name, shape, classes)
    try:
        return _tried(name, shape, classes, search_space)
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        fitting = ", ".join(fitting_models(shape, classes, search_space))
        if not fitting:
            raise ValueError(f"model {name} cannot be built: {reason}") from None
        listed = ", ".join(map(str, shape))
        raise ValueError(
            f"model {name} takes no samples (n, {listed}); built-in models that do: {fitting}; or "
            f"set models to your own module:object ({reason})"
        ) from None


def fitting_models(
    shape: Shape, classes: int, search_space: SearchSpace | None = None
) -> list[str]:
    """Return the names of the built-in models that take samples of a shape."""
    return [name for name in MODELS if _fits(name, shape, classes, search_space)]


def returns_probabilities(model: nn.Module, shape: Shape) -> bool:
    """Return whether a model's rows are not negative and sum to one, as those of a softmax."""
    rows = _one_answer(model, shape)
    return bool((rows >= 0).all() and torch.allclose(rows.sum(dim=1), torch.ones(1), atol=1e-4))


def _fits(name: str, shape: Shape, classes: int, search_space: SearchSpace | None) -> bool:
    try:
        _tried(name, shape, classes, search_space)
    except (ValueError, RuntimeError):
        return False
    return True


def _tried(name: str, shape: Shape, classes: int, search_space: SearchSpace | None) -> nn.Module:
    model = build_model(name, shape, classes, search_space)
    _one_answer(model, shape)
    return model


def _one_answer(model: nn.Module, shape: Shape) -> torch.Tensor:
    """Return what a model answers to one sample of zeros, and leave the model as it was."""
    was_training = model.training
    try:
        with torch.no_grad():
            answer: torch.Tensor = model.eval()(torch.zeros(1, *shape))
    finally:
        model.train(was_training)
    return answer
