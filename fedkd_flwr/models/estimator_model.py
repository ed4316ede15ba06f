"""The model of an estimator: a module that maps samples to log-probabilities.

Its state is one tensor of bytes in the format of skops, which unlike pickle runs no code when read.
"""

import warnings
import zipfile
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkd_flwr.custom_objects.importing import CustomObjectError

SMALLEST_PROBABILITY = 1e-6
"""Probabilities below count as this one. A tree's zero would have an infinite logarithm."""

WEIGHT = "sample_weight"
"""Name of the argument of ``fit`` with the weights of the rows."""

ROWS_PER_CLASS = 10
"""Samples of each class in a fit on random numbers."""

ROUNDING = 1e-3
"""How far a sum of probabilities may be from 1."""

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
    found = np.asarray(estimator.predict_proba(_rows(samples)), dtype=np.float64)
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
    labels = torch.arange(ROWS_PER_CLASS * classes) % classes
    samples = torch.rand((len(labels), features), generator=torch.Generator().manual_seed(0))
    if missing:
        samples[::ROWS_PER_CLASS, 0] = torch.nan
    model = EstimatorModel(create, classes)
    with warnings.catch_warnings(action="ignore"):
        model.fit(samples, labels, torch.ones(len(labels)))
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
