"""Stage 2 of PersFL on a client: a distilled model for each pair of the grid, and the best one."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkd_flwr.memory import Memory
from fedkd_flwr.training.loop import Evaluation


@dataclass(frozen=True)
class Candidate:
    """A model that was distilled for a pair of the grid, with its results and weights."""

    validation: Evaluation
    test: Evaluation
    weights: dict[str, Tensor]


@dataclass
class PairSearch:
    """A client's progress through the pairs of the grid.

    `counts` (pairs, 2) are correct predictions on validation and test data, `DIVERGED` for both if
    a pair diverged or was not tried yet. `best` is the position of the best pair, -1 for none.
    """

    counts: NDArray[np.int32]
    tried: int = 0
    best: int = -1
    loss: float = 0.0
    weights: dict[str, Tensor] = field(default_factory=dict)

    def add(self, candidate: Candidate | None) -> None:
        """Record the result of the next pair: its model, or None if it diverged."""
        position, self.tried = self.tried, self.tried + 1
        if candidate is None:
            return
        found = candidate.validation
        self.counts[position] = found.correct, candidate.test.correct
        best = Evaluation(int(self.counts[self.best, 0]), found.total, self.loss)
        if self.best < 0 or found.rank > best.rank:
            self.best, self.loss = position, found.loss
            self.weights = candidate.weights

    def saved(self) -> Memory:
        """Return the progress as a memory of its own."""
        progress = Memory()
        progress.save("counts", {"counts": torch.from_numpy(self.counts)})
        progress.save("best", self.weights)
        numbers = {"tried": self.tried, "best": self.best, "loss": self.loss}
        progress.save_numbers("search", numbers)
        return progress

    @classmethod
    def read(cls, progress: Memory) -> "PairSearch":
        """Read the progress from the result of `saved`."""
        counts, numbers = progress.tensors["counts"]["counts"], progress.numbers["search"]
        tried, best = int(numbers["tried"]), int(numbers["best"])
        return cls(counts.numpy(), tried, best, numbers["loss"], progress.load("best") or {})
