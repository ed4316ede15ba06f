"""Models that are no networks: anything with ``fit(X, y, sample_weight)`` and ``predict_proba(X)``.

A custom model ``module:object`` is an estimator if the object, a class or an estimator that is not
fitted yet, has both. A function is always the builder of a network.
"""

import inspect
import warnings
import zipfile
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkd_flwr.custom_objects.importing import CustomObjectError, find_custom, is_custom, told

SMALLEST_PROBABILITY = 1e-6
"""Probabilities below count as this one. A tree's zero would have an infinite logarithm."""

WEIGHT = "sample_weight"  # name of the argument of ``fit`` with the weights of the rows
ROWS_PER_CLASS = 10  # samples of each class in a fit on random numbers
ROUNDING = 1e-3  # how far a sum of probabilities may be from 1
MOSTLY_WRONG = 0.75  # share of wrong classes that is not due to chance
WRONG_LABELS = 3  # rows with a wrong label for each with the right one, when weights are tried

OWN_PACKAGES = {"sklearn", "collections", "numpy"}
"""Packages whose types the stored state of a client's own estimator may have, besides its own."""


class EstimatorModel(nn.Module):
    """An estimator, made by `create`, as a module, refitted from scratch by `fit`.

    Labels are numbered without gaps for the estimator. `trusted` are types, besides those that
    skops knows to be safe, that a stored state may have; by default those of the estimator's own
    packages. `was_fitted` tells whether this object was fitted, also in vain.
    """

    def __init__(
        self, create: Callable[[], Any], classes: int, trusted: Collection[str] | None = None
    ) -> None:
        super().__init__()
        self._create = create
        self._classes = classes
        self._trusted = trusted
        self._state: dict[str, Any] | None = {"estimator": None, "labels": np.arange(classes)}
        self._packed: Tensor | None = None
        self.was_fitted = False

    @property
    def estimator(self) -> Any:
        """The fitted estimator; None if there was no fit yet, or one of a single class."""
        return self.read()["estimator"]

    # ---- Fit and predict -----------------------------------------------------------------

    def fit(self, samples: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Fit a new estimator on samples (n, …), labels (n,) and weights (n,)."""
        self.was_fitted = True
        kept = (weights > 0).cpu().numpy()
        present, numbers = np.unique(labels.cpu().numpy()[kept], return_inverse=True)
        estimator = None
        if len(present) > 1:
            estimator = self._create()
            given = {_name_of_weight(estimator): weights.cpu().double().numpy()[kept]}
            estimator.fit(_rows(samples)[kept], numbers, **given)
        self._state, self._packed = {"estimator": estimator, "labels": present}, None

    def forward(self, samples: Tensor) -> Tensor:
        """Return log-probabilities (n, K), float32, of samples (n, ...)."""
        state = self.read()
        labels, estimator = state["labels"], state["estimator"]
        probabilities = np.zeros((len(samples), self._classes))
        # Not by its truth value, which is the number of steps or members of some.
        is_fitted = estimator is not None
        probabilities[:, labels] = (
            _predicted(estimator, samples, len(labels)) if is_fitted else 1 / len(labels)
        )
        logarithms = np.log(probabilities.clip(SMALLEST_PROBABILITY)).astype(np.float32)
        return torch.from_numpy(logarithms).to(samples.device)

    # ---- State ---------------------------------------------------------------------------

    def get_extra_state(self) -> Tensor:
        """Return what `fit` has learned, as the bytes (n,) of a skops file."""
        if self._packed is None:
            import skops.io  # deferred, as scikit-learn above

            compression = {"compression": zipfile.ZIP_DEFLATED, "compresslevel": 1}
            packed = skops.io.dumps(self._state, **compression)
            self._packed = torch.from_numpy(np.frombuffer(packed, dtype=np.uint8).copy())
        return self._packed

    def set_extra_state(self, state: Tensor) -> None:
        """Take over a state of `get_extra_state`. It is read when it is needed."""
        self._state, self._packed = None, state.cpu()

    def read(self) -> dict[str, Any]:
        """Return the estimator and its labels; refuse a state with types that are not trusted."""
        if self._state is None:
            assert self._packed is not None
            self._state = _read_state(self._packed.numpy().tobytes(), self._trusts)
        return self._state

    def _trusts(self, kind: str) -> bool:
        if self._trusted is not None:
            return kind in self._trusted
        return kind.partition(".")[0] in OWN_PACKAGES | _packages_of(self._create())


def _rows(samples: Tensor) -> NDArray[np.float32]:
    return samples.flatten(1).cpu().numpy()


def _predicted(estimator: Any, samples: Tensor, classes: int) -> NDArray[np.float64]:
    """Return the probabilities (n, K) of samples by a fitted estimator; refuse anything else."""
    # A copy, which a user's class may change.
    found = np.asarray(estimator.predict_proba(_rows(samples).copy()), dtype=np.float64)
    asked = f"predict_proba of {type(estimator).__name__}"
    if found.shape != (len(samples), classes):
        raise CustomObjectError(
            f"{asked} returns the shape {found.shape} for {len(samples)} samples; it should be "
            f"{len(samples), classes}, a column for each class that fit has seen"
        )
    is_probability = (found >= 0).all(axis=1) & (abs(found.sum(axis=1) - 1) <= ROUNDING)
    if not is_probability.all():
        row = ", ".join(f"{value:.3g}" for value in found[is_probability.argmin()])
        raise CustomObjectError(
            f"{asked} returns the row [{row}]; its rows should be probabilities, which sum to one"
        )
    return found


def _packages_of(estimator: Any) -> set[str]:
    """Return the packages to which an estimator and its parts belong, without Python's own."""
    parts = [estimator]
    if hasattr(estimator, "get_params"):
        parts += estimator.get_params().values()
    return {type(part).__module__.partition(".")[0] for part in parts} - {"builtins"}


def _read_state(packed: bytes, trusts: Callable[[str], bool]) -> dict[str, Any]:
    """Read a skops file; refuse one with types that are not trusted."""
    import skops.io

    unknown = skops.io.get_untrusted_types(data=packed)
    if refused := [kind for kind in unknown if not trusts(kind)]:
        raise ValueError(
            f"the estimator's file has types that are not trusted: {', '.join(refused)}; if you "
            f"trust who wrote it, pass trusted={refused}"
        )
    state: dict[str, Any] = skops.io.loads(packed, trusted=unknown)
    return state


def _name_of_weight(estimator: Any) -> str:
    """Return the name of the argument that weights the rows at the last step of a pipeline."""
    steps = getattr(estimator, "steps", None)
    return f"{steps[-1][0]}__{_name_of_weight(steps[-1][1])}" if steps else WEIGHT


def fitted_types(create: Callable[[], Any], features: int, classes: int) -> set[str]:
    """Return the types of a fitted estimator, found by fits on random numbers, but safe ones."""
    import skops.io

    found = set[str]()
    for present in {2, classes}:
        state = fitted_on_random_numbers(create, features, present).get_extra_state()
        found |= {*skops.io.get_untrusted_types(data=state.numpy().tobytes())}
    return found


def fitted_on_random_numbers(
    create: Callable[[], Any], features: int, classes: int, missing: bool = False
) -> EstimatorModel:
    """Return a model fitted on `ROWS_PER_CLASS` random samples of each class."""
    samples, labels = _random_samples(features, classes)
    if missing:
        samples[::ROWS_PER_CLASS, 0] = torch.nan
    return _fitted_in_silence(create, classes, samples, labels, torch.ones(len(labels)))


def _random_samples(features: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return random samples of each class, which is larger in columns of its own, and labels."""
    labels = torch.arange(ROWS_PER_CLASS * classes) % classes
    samples = torch.rand((len(labels), features), generator=torch.Generator().manual_seed(0))
    return samples + 2 * (torch.arange(features) % classes == labels[:, None]), labels


def _fitted_in_silence(create: Callable[[], Any], classes: int, *rows: Tensor) -> EstimatorModel:
    model = EstimatorModel(create, classes)
    with warnings.catch_warnings(action="ignore"):
        model.fit(*rows)
    return model


def weighted_rows(
    samples: Tensor, probabilities: Tensor, top: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Return soft labels (P, K) as rows with one class each, weighted by its probability.

    Fitting them minimizes the cross-entropy to the soft labels. With `top`, only so many of the
    most probable classes get a row.
    """
    if top:
        threshold = probabilities.topk(min(top, probabilities.shape[1]), dim=1)
        kept = torch.zeros_like(probabilities).scatter(1, threshold.indices, threshold.values)
        probabilities = kept / kept.sum(dim=1, keepdim=True)
    positions, labels = probabilities.nonzero(as_tuple=True)
    return samples[positions], labels, probabilities[positions, labels]


SEED = "random_state"  # name of an estimator's parameter that seeds its draws


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
    return f"{told(error)} ({_told(error.__cause__)})" if error.__cause__ else told(error)


def try_estimator(
    name: str, create: Callable[[], Any], features: int, missing: bool = False
) -> bool:
    """Return whether a second fit of an estimator predicts the same as the first.

    Refuses one that cannot be fitted, asked for probabilities, stored and read again, one that
    orders the classes otherwise, and one that does not use weights.
    """
    try:
        fitted = fitted_on_random_numbers(create, features, classes=2, missing=missing)
        again = EstimatorModel(create, classes=2)
        again.load_state_dict(fitted.state_dict())
        again(torch.zeros(2, features))
        _require_order(name, again, features)
        _require_weights(name, create, features)
        return _predict_alike(
            again, fitted_on_random_numbers(create, features, 2, missing), features
        )
    except CustomObjectError:
        raise
    # A user's class may raise anything.
    except Exception as error:
        raise CustomObjectError(
            f"{name} fails on {2 * ROWS_PER_CLASS} random samples of {features} numbers and 2 "
            f"classes{', some of them missing' * missing}: {_told(error)}"
        ) from error


def _require_order(name: str, model: EstimatorModel, features: int) -> None:
    """Refuse an estimator whose columns of probabilities belong to other classes."""
    if _share_wrong(model, features) > MOSTLY_WRONG:
        raise CustomObjectError(
            f"{name} is wrong for most of the samples that it was fitted on: the columns of its "
            "predict_proba should belong to the classes in ascending order"
        )


def _require_weights(name: str, create: Callable[[], Any], features: int) -> None:
    """Refuse an estimator that learns labels of little weight, because there are more of them."""
    samples, labels = _random_samples(features, classes=2)
    wrong = (samples, 1 - labels, torch.full((len(labels),), 0.1))
    rows = [(samples, labels, torch.ones(len(labels))), *[wrong] * WRONG_LABELS]
    model = _fitted_in_silence(create, 2, *map(torch.cat, zip(*rows, strict=True)))
    if _share_wrong(model, features) > MOSTLY_WRONG:
        raise CustomObjectError(
            f"the probabilities of {name} do not follow {WEIGHT}, which distillation needs: use it "
            "in fit, or choose an estimator that does (for SVC, CalibratedClassifierCV(SVC()))"
        )


def _predict_alike(first: EstimatorModel, second: EstimatorModel, features: int) -> bool:
    """Return whether two models predict the same halfway between samples of two classes."""
    samples, _ = _random_samples(features, classes=2)
    between = (samples + samples.roll(1, dims=0)) / 2
    return torch.allclose(first(between), second(between), atol=ROUNDING)


def _share_wrong(model: EstimatorModel, features: int) -> float:
    """Return for which share of random samples of two classes a model prefers the other."""
    samples, labels = _random_samples(features, classes=2)
    rows = model(samples)
    own, other = (rows.gather(1, column[:, None]) for column in (labels, 1 - labels))
    return float((own < other).double().mean())


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
