"""Whether models fit the samples of custom data, found by one sample before a run."""

import torch
from torch import nn

from fedkd_flwr.custom_objects.importing import is_custom
from fedkd_flwr.models.build import build_model
from fedkd_flwr.models.darts.search_space import SearchSpace
from fedkd_flwr.models.registry import MODELS
from fedkd_flwr.models.sample_shapes import Shape


def build_fitting(
    name: str, shape: Shape, classes: int, search_space: SearchSpace | None = None
) -> nn.Module:
    """Build a model, after making sure that it takes samples of a shape.

    Parameters
    ----------
    name, shape, classes, search_space
        As for `build_model`.

    Raises
    ------
    ValueError
        If it does not; with the built-in models that do.
    """
    if is_custom(name):
        return build_model(name, shape, classes)
    try:
        return _tried(name, shape, classes, search_space)
    except (ValueError, RuntimeError):
        fitting = ", ".join(fitting_models(shape, classes, search_space)) or "none"
        listed = ", ".join(map(str, shape))
        raise ValueError(
            f"model {name} takes no samples (n, {listed}); built-in models that do: {fitting}; or "
            "set models to your own module:object"
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
