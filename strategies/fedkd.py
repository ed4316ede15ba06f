"""FedKD: mutual distillation of a private and a shared model with compressed updates.

On every client a private *mentor* and a copy of the shared *mentee* learn from the labels, from
each other's predictions, and from each other's features through a learned matrix. The less certain
both are, the weaker the distillation. The update of each weight matrix of the mentee is sent as the
factors of a truncated singular value decomposition. It keeps the fewest singular values that hold a
share of the energy, which rises over the rounds. The server averages the updates by samples.

Differences from the paper
--------------------------
- **Messages.** Clients send factors where these are shorter than the matrix. The server sends the
  whole mentee as one vector. The paper sends factors of the averaged update both ways, and a client
  that is not sampled in every round would miss some. Bytes are counted as sent.
- An update is the change over a round of local steps; in the paper it is a gradient. A
  convolution's kernel is decomposed as a matrix with a row for each output channel.
- Only features before the head are imitated. The paper's language models also imitate further
  hidden states and attention.
- Imitation is divided by the sum of both task losses as in Eqs. 2 to 4, without a gradient through
  that sum. The divisor is at least a tenth; otherwise the term would grow without bound.
- Mentors of one architecture start from common weights, unless ``initial-weights = "own"``. The
  mentee's are drawn apart from them.
- The mentor is evaluated. Momentum of the mentor is kept; that of the mentee, which is
  replaced, starts anew.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.declarations import ALPHAS, BUFFERS, WEIGHTS, Sent, of_model
from strategies.core.method_record import Paper
from strategies.core.plan import ImpossiblePlanError, PlanSettings, RunPlan, Settings
from strategies.core.replies import LARGEST_NUMBER, Arrays, ExpectedArray, InvalidReplyError, Reply
from strategies.core.settings_groups import ANY_ON_NODES
from strategies.parameters import (
    Model,
    ParameterState,
    SharedModelSettings,
    SharedModelStrategy,
    expected_model,
)

Shape = tuple[int, int]  # rows and columns of a matrix


def rank_for_energy(singular_values: NDArray[Any], energy: float) -> int:
    """Return the smallest k >= 1 for which ``Σ_{i<=k} σ_i² >= energy Σ_i σ_i²``, σ descending."""
    kept = np.cumsum(singular_values.astype(np.float64) ** 2)
    return min(len(kept), int(np.searchsorted(kept, energy * kept[-1])) + 1)


def compressed(
    matrices: Sequence[NDArray[np.float32]], energy: float
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Compress matrices (m, n) to the concatenated factors of their truncated SVD, and the ranks k.

    A matrix is ``U S`` (m, k) and V (k, n) with a share `energy` of its squared entries, or itself
    with rank 0 if that is not longer.
    """
    parts, ranks = [], []
    for matrix in matrices:
        rows, columns = matrix.shape
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        rank = rank_for_energy(values, energy)
        if rank * (rows + columns) < rows * columns:
            parts += [left[:, :rank] * values[:rank], right[:rank]]
            ranks.append(rank)
        else:
            parts.append(matrix)
            ranks.append(0)
    flat = np.concatenate([part.reshape(-1) for part in parts])
    return flat.astype(np.float32), np.array(ranks, dtype=np.int32)


def lengths(shapes: Sequence[Shape], ranks: NDArray[np.integer[Any]]) -> list[int]:
    """Return the number of entries that `compressed` returns for each matrix."""
    return [
        int(rank) * (rows + columns) if rank else rows * columns
        for (rows, columns), rank in zip(shapes, ranks, strict=True)
    ]


def restored(
    factors: NDArray[np.float32], ranks: NDArray[np.integer[Any]], shapes: Sequence[Shape]
) -> Iterator[NDArray[np.float32]]:
    """Yield the matrices from the output of `compressed`."""
    ends = np.cumsum(lengths(shapes, ranks))
    stretches = np.split(factors, ends[:-1])
    for stretch, rank, (rows, columns) in zip(stretches, ranks, shapes, strict=True):
        if rank:
            left, right = np.split(stretch, [rank * rows])
            yield left.reshape(rows, rank) @ right.reshape(rank, columns)
        else:
            yield stretch.reshape(rows, columns)


FACTORS, RANKS = "factors", "ranks"
"""Names of an update's factors, one-dimensional, and of the rank of each matrix, (L,)."""


class FedKDSettings(SharedModelSettings):
    """Settings of FedKD."""

    table = "fedkd"
    energy_start: Annotated[float, ANY_ON_NODES] = Field(default=0.95, gt=0, le=1)
    """Share of an update's energy (squared singular values) that is sent in the first round; 1
    sends everything."""
    energy_end: Annotated[float, ANY_ON_NODES] = Field(default=0.98, gt=0, le=1)
    """Share of an update's energy that is sent in the last round; it rises linearly from
    `energy_start`."""

    def energy(self, server_round: int, num_rounds: int) -> float:
        """Return the share that is sent in a round; it rises linearly."""
        progress = min(1.0, (server_round - 1) / max(num_rounds - 1, 1))
        return self.energy_start + (self.energy_end - self.energy_start) * progress


class FedKD(SharedModelStrategy):
    """FedKD (Algorithm 1): factors of the shared model's updates up, the model down."""

    record = SharedModelStrategy.record.derived(
        paper=Paper(
            authors="C. Wu, F. Wu, L. Lyu, Y. Huang, X. Xie",
            title="Communication-efficient federated learning via knowledge distillation",
            venue="Nature Communications 13, 2032",
            year=2022,
            arxiv="2108.13323",
        ),
        exchanged="compressed parameters of a shared model",
        settings_type=FedKDSettings,
        dp_sgd=True,
        sends=(of_model(FACTORS), of_model(RANKS), of_model(ALPHAS), Sent(BUFFERS)),
    )

    @classmethod
    def check_plan(cls, plan: RunPlan, settings: Settings) -> None:
        own = FedKDSettings.model_validate(settings)
        if own.energy_end < own.energy_start:
            raise ImpossiblePlanError(
                f"fedkd.energy-end = {own.energy_end:g} is below fedkd.energy-start = "
                f"{own.energy_start:g}: the energy rises, or stays; set fedkd.energy-end to at "
                f"least {own.energy_start:g}."
            )

    @classmethod
    def spanning_setting(cls, plan: PlanSettings, settings: Settings) -> str:
        """Name the energy, if it rises: it does so from the first to the last planned round."""
        own = FedKDSettings.model_validate(settings)
        return "fedkd.energy-end" if own.energy_end > own.energy_start else ""

    @cached_property
    def shapes(self) -> list[Shape]:
        """Rows and columns of the shared model's matrices."""
        layout = self.server_models.layout(self.architecture).values()
        shapes = [shape for kind, shape in layout if kind == WEIGHTS]
        # A scalar is a 1x1 matrix, and a kernel has one row per output channel.
        return [(rows, math.prod(others)) for rows, *others in ((*shape, 1) for shape in shapes)]

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, ExpectedArray]:
        """Require factors, at most as long as the weights, and the other kinds uncompressed."""
        due = expected_model(self.state.model)
        factors = ExpectedArray(due.pop(WEIGHTS).shape, at_most=True)
        return {FACTORS: factors, RANKS: ExpectedArray((len(self.shapes),), "int32"), **due}

    def check_reply(self, reply: Reply) -> None:
        factors, ranks = reply.arrays[FACTORS], reply.arrays[RANKS]
        highest = np.min(self.shapes, axis=1)
        if (ranks < 0).any() or (ranks > highest).any():
            raise InvalidReplyError(f"{RANKS} holds a rank that its matrix cannot have")
        due = sum(lengths(self.shapes, ranks))
        if len(factors) != due:
            raise InvalidReplyError(f"{FACTORS} holds {len(factors)} numbers instead of {due}")
        if not np.abs(self.update_in(reply.arrays)).max() <= LARGEST_NUMBER:
            raise InvalidReplyError(f"{FACTORS} multiply to a number beyond {LARGEST_NUMBER:g}")

    def bounded(self, replies: dict[int, Reply]) -> dict[int, Reply]:
        """Replace factors by the updates of the weights, and clip these."""
        updates = {n: {WEIGHTS: self.update_in(reply.arrays)} for n, reply in replies.items()}
        return super().bounded(
            {n: replace(r, arrays={**r.arrays, **updates[n]}) for n, r in replies.items()}
        )

    def sent_to(self, reply: Reply) -> Arrays:
        """Return zero for the weights, whose updates travel, and the other kinds."""
        return {**self.state.model, WEIGHTS: np.zeros((), dtype=np.float32)}

    def aggregate_models(self, server_round: int, models: dict[int, Model]) -> ParameterState:
        """Add the mean update to the weights, and average the other kinds."""
        mean = self.average(models)
        weights = self.state.model[WEIGHTS] + mean[WEIGHTS]
        return replace(self.state, model={**mean, WEIGHTS: weights})

    def update_in(self, arrays: Arrays) -> NDArray[np.float32]:
        """Return the update of all weights as one vector, from the factors of a reply."""
        matrices = restored(arrays[FACTORS], arrays[RANKS], self.shapes)
        return np.concatenate([matrix.reshape(-1) for matrix in matrices])
