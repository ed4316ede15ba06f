"""Models that are no networks: anything with ``fit(X, y, sample_weight)`` and ``predict_proba(X)``.

A custom model ``module:object`` is an estimator if the object, a class or an estimator that is not
fitted yet, has both. A function is always the builder of a network.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from fedkd_flwr.custom_objects.importing import CustomObjectError, find_custom, is_custom
from fedkd_flwr.models.estimator_model import (
    ROWS_PER_CLASS,
    WEIGHT,
    EstimatorModel,
    fitted_on_random_numbers,
    fitted_types,
)

SEED = "random_state"
"""Name of an estimator's parameter that seeds its draws."""


def is_estimator(thing: Any) -> bool:
    """Return whether an object, or the class that it is, has ``fit`` and ``predict_proba``."""
    return hasattr(thing, "fit") and hasattr(thing, "predict_proba")


def names_estimator(name: str) -> bool:
    """Return whether the name of a model stands for an estimator. A custom one is imported."""
    if not is_custom(name):
        return False
    found = find_custom(name)
    is_network = isinstance(found, type) and issubclass(found, nn.Module)
    if hasattr(found, "fit") and not hasattr(found, "predict_proba") and not is_network:
        raise CustomObjectError(without_probabilities(name))
    return is_estimator(found)


def without_probabilities(name: str) -> str:
    """Return what to say of an estimator without ``predict_proba``."""
    return (
        f"{name} has fit and no predict_proba, so that it has no soft predictions; choose a "
        "classifier with predict_proba (a VotingClassifier needs voting='soft'), or wrap it in "
        "sklearn.calibration's CalibratedClassifierCV"
    )


def new_estimator(name: str, options: Mapping[str, Any] | None = None, seed: int = 0) -> Any:
    """Create an estimator that is not fitted; the seed is for every open ``random_state``."""
    try:
        estimator = created(find_custom(name), options)
        if hasattr(estimator, "get_params"):
            estimator.set_params(**dict.fromkeys(_open_seeds(estimator), seed))
    # A user's class may raise anything.
    except Exception as error:
        raise CustomObjectError(
            f"{name} cannot be created with the options {dict(options or {})}: {_told(error)}"
        ) from error
    last = _last_step(estimator)
    if not _takes_weights(last):
        raise CustomObjectError(
            f"{name}: fit of {type(last).__name__} takes no {WEIGHT}, which distillation needs; "
            "choose an estimator that takes it"
        )
    return estimator


def _takes_weights(estimator: Any) -> bool:
    """Return whether ``fit`` takes weights, or hands keywords on to inner estimators."""
    parameters = inspect.signature(estimator.fit).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    return WEIGHT in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def created(kind: Any, options: Mapping[str, Any] | None = None) -> Any:
    """Create an estimator that is not fitted, of a class or like an object."""
    from sklearn.base import clone  # deferred: networks do without

    if isinstance(kind, type):
        return kind(**(options or {}))
    estimator = clone(kind, safe=False)
    return estimator.set_params(**options) if options else estimator


def _told(error: BaseException) -> str:
    text = f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"
    return f"{text} ({_told(error.__cause__)})" if error.__cause__ else text


def try_estimator(
    name: str, create: Callable[[], Any], features: int, missing: bool = False
) -> None:
    """Refuse an estimator that cannot be fitted, asked for probabilities, stored and read again."""
    try:
        fitted = fitted_on_random_numbers(create, features, classes=2, missing=missing)
        again = EstimatorModel(create, classes=2)
        again.load_state_dict(fitted.state_dict())
        again(torch.zeros(2, features))
    except CustomObjectError:
        raise
    # A user's class may raise anything.
    except Exception as error:
        raise CustomObjectError(
            f"{name} fails on {2 * ROWS_PER_CLASS} random samples of {features} numbers and 2 "
            f"classes{', some of them missing' * missing}: {_told(error)}"
        ) from error


def _open_seeds(estimator: Any) -> list[str]:
    """Return the names of the seeds that an estimator's parameters leave open."""
    parameters = estimator.get_params().items()
    return [name for name, value in parameters if name.split("__")[-1] == SEED and value is None]


def _last_step(estimator: Any) -> Any:
    """Return the last estimator of a pipeline, or the estimator itself."""
    steps = getattr(estimator, "steps", None)
    return _last_step(steps[-1][1]) if steps else estimator


def estimator_to_read(
    kind: Any, features: int, classes: int, trusted: Collection[str] | None = None
) -> EstimatorModel:
    """Return a model for a state that others may have written, of trusted types alone."""
    create = partial(created, kind)
    if trusted is None:
        trusted = fitted_types(create, features, classes)
    return EstimatorModel(create, classes, trusted)
