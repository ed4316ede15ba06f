"""A node's ledger of its releases with noise, over all runs, since what they reveal adds up.

Releases of predictions with noise protect the client as a whole, trainings by DP-SGD each training
sample, counts with noise each validation or test sample; they are counted apart. A line of JSON is
on the disk before the release leaves the node, or the training begins, so that a crash misses none.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from fedkd_flwr.clients.policy import PolicyError
from fedkd_flwr.files import lock_file, now, open_private, sync
from fedkd_flwr.training.dp_sgd import added, epsilon_spent
from strategies.core.privacy import epsilon_of

PURE = "epsilon"
"""Entry about labels after randomized response: the epsilon of the release, delta 0."""

OF_STEPS = RATE, NOISE, STEPS = "sampling-rate", "noise-multiplier", "steps"
"""Entries about a training by DP-SGD. A release of predictions has `NOISE` alone."""

COUNT_NOISE = "count-noise"
"""Entry about numbers of correct answers: the deviation of their noise, in samples, over the root
of how many of them a sample is counted in."""

LEDGER = "privacy-ledger.jsonl"  # name of the file, in the folder of the node's memory


class DamagedLedgerError(RuntimeError):
    """A ledger that cannot be read, so that the node does not know what it has released."""


@dataclass(frozen=True)
class PrivacyLedger:
    """The releases of a node, in a file that is made with the first one.

    `budget` is the largest epsilon of all releases together, and for each sample of all trainings
    together; it is counted at `delta`. `count_budget` is that of counts.
    """

    file: Path
    budget: float = math.inf
    delta: float = 1e-5
    count_budget: float = math.inf

    @property
    def epsilon(self) -> float:
        """What all releases together have spent."""
        return epsilon_of_releases(self.lines(), self.delta)

    @property
    def epsilon_of_training(self) -> float:
        """What all trainings by DP-SGD together have spent, for each sample."""
        return epsilon_of_trainings(self.lines(), self.delta)

    @property
    def epsilon_of_counts(self) -> float:
        """What all counts with noise together have spent, for each validation or test sample."""
        return epsilon_of_counts(self.lines(), self.delta)

    def lines(self) -> list[dict[str, float]]:
        """Return the numbers of each release and training by their names."""
        if not self.file.exists():
            return []
        with self.file.open("rb") as file:
            return self._read(file)

    def record(self, entry: Mapping[str, float], run_id: str, server_round: int) -> None:
        """Record a release before it leaves the node, or a training before it begins.

        The entry has `NOISE` of predictions, `PURE` of labels, `OF_STEPS` or `COUNT_NOISE`. One
        that exceeds its budget is refused.
        """
        with self._locked() as file:
            self._check(self._read(file), entry)
            line = {"time": now(), "run": run_id, "round": server_round, **entry}
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            sync(self.file.parent)

    def check(self, entry: Mapping[str, float]) -> None:
        """Refuse what `record` would refuse, and record nothing."""
        self._check(self.lines(), entry)

    def _check(self, lines: Sequence[Mapping[str, float]], entry: Mapping[str, float]) -> None:
        """Refuse an entry that exceeds the budget together with earlier ones."""
        spent = epsilon_of_trainings if STEPS in entry else epsilon_of_releases
        budget, key = self.budget, "epsilon-budget"
        if COUNT_NOISE in entry:
            spent, budget, key = epsilon_of_counts, self.count_budget, "count-budget"
        if not math.isfinite(budget):
            return
        before, after = spent(lines, self.delta), spent([*lines, entry], self.delta)
        # What is no number is refused too, and so is less than before, by rounding in accounting.
        if not before <= after <= budget:
            raise PolicyError(f"the {key} of this node is spent")

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """Open the ledger for this process alone, after removing a line that was cut off."""
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open_private(self.file, "ab+") as file:
            if not lock_file(file):
                raise PolicyError(
                    "the ledger of this node needs a state-dir on a file system with locks"
                )
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            yield file

    def _read(self, file: IO[bytes]) -> list[dict[str, float]]:
        file.seek(0)
        # What follows the last line end was cut off by a crash, before its release left.
        lines = file.read().split(b"\n")[:-1]
        try:
            return [_read_line(json.loads(line)) for line in lines]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DamagedLedgerError(
                f"{self.file} is damaged; restore it from a copy, since the node cannot tell "
                "otherwise what it has released"
            ) from None


def _read_line(line: dict[str, float]) -> dict[str, float]:
    kinds = {PURE: [PURE], COUNT_NOISE: [COUNT_NOISE], STEPS: OF_STEPS}
    due = next((names for name, names in kinds.items() if name in line), [NOISE])
    return {name: float(line[name]) for name in due}


def epsilon_of_releases(lines: Sequence[Mapping[str, float]], delta: float) -> float:
    """Return what releases of predictions and of labels have spent at `delta`."""
    noise = Counter(line[NOISE] for line in lines if NOISE in line and STEPS not in line)
    return epsilon_of(noise, delta) + math.fsum(line.get(PURE, 0.0) for line in lines)


def epsilon_of_trainings(lines: Sequence[Mapping[str, float]], delta: float) -> float:
    """Return what trainings by DP-SGD have spent at `delta`."""
    spent = np.empty((0, len(OF_STEPS)))
    for line in lines:
        if STEPS in line:
            spent = added(spent, line[RATE], line[NOISE], int(line[STEPS]))
    return epsilon_spent(spent, delta)


def epsilon_of_counts(lines: Sequence[Mapping[str, float]], delta: float) -> float:
    """Return what counts with noise have spent at `delta`."""
    return epsilon_of(Counter(line[COUNT_NOISE] for line in lines if COUNT_NOISE in line), delta)
