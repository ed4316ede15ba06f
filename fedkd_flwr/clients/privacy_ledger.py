"""A node's ledger of its releases with noise, over all runs.

Each run counts its own releases, but what they reveal adds up. Releases of predictions with noise
protect the client as a whole, trainings by DP-SGD each sample. These are counted apart.

The ledger is a file beside the node's memory, with one line in JSON per release or training. A
line is on the disk before the release leaves the node, or the training begins. A crash can
therefore count a release that was not sent, and misses none that was.
"""

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.clients.policy import PolicyError
from fedkd_flwr.files import sync
from fedkd_flwr.training.dp_sgd import added, epsilon_spent
from strategies.core.privacy import epsilon_of

if sys.platform != "win32":
    import fcntl

PURE = "epsilon"
"""Entry of a line about labels after randomized response: the epsilon of the release, delta 0."""

OF_STEPS = RATE, NOISE, STEPS = "sampling-rate", "noise-multiplier", "steps"
"""Entries of a line about DP-SGD."""

LEDGER = "privacy-ledger.jsonl"
"""Name of the file, in the folder of the node's memory."""


class DamagedLedgerError(RuntimeError):
    """A ledger that cannot be read, so that the node does not know what it has released."""


@dataclass(frozen=True)
class PrivacyLedger:
    """The releases of a node.

    Attributes
    ----------
    file : Path
        Made with the first release.
    """

    file: Path

    def releases(self) -> Counter[float]:
        """Return the number of releases with each noise multiplier.

        Raises
        ------
        DamagedLedgerError
            If a line is none of a ledger.
        """
        if not self.file.exists():
            return Counter()
        with self.file.open("rb") as file:
            return self._read(file)

    def epsilon(self, delta: float) -> float:
        """Return what all releases together have spent at `delta`."""
        if not self.file.exists():
            return 0.0
        with self.file.open("rb") as file:
            return _spent(self._lines(file), delta)

    def epsilon_of_training(self, delta: float) -> float:
        """Return what all trainings by DP-SGD together have spent at `delta`, for each sample."""
        if not self.file.exists():
            return 0.0
        with self.file.open("rb") as file:
            return epsilon_spent(self._steps(file), delta)

    def record(
        self,
        noise_multiplier: float,
        run_id: str,
        server_round: int,
        budget: float = math.inf,
        delta: float = 1e-5,
    ) -> None:
        """Record a release before it leaves the node.

        Parameters
        ----------
        noise_multiplier : float
            Standard deviation of its noise divided by the sensitivity, above 0.
        run_id : str
            The run, for the operator.
        server_round : int
            The round, for the operator.
        budget : float
            Largest epsilon of all releases together.
        delta : float
            delta at which the budget is counted.

        Raises
        ------
        PolicyError
            If the release would exceed the budget. It is then not recorded.
        DamagedLedgerError
            If the ledger cannot be read.
        """
        with self._locked() as file:
            self._record(file, run_id, server_round, {NOISE: noise_multiplier}, budget, delta)

    def record_labels(
        self,
        epsilon: float,
        run_id: str,
        server_round: int,
        budget: float = math.inf,
        delta: float = 1e-5,
    ) -> None:
        """Record labels after randomized response before they leave the node.

        Parameters
        ----------
        epsilon : float
            That of all labels of the message together.
        run_id, server_round, budget, delta
            As for `record`.

        Raises
        ------
        PolicyError, DamagedLedgerError
            As `record`.
        """
        with self._locked() as file:
            self._record(file, run_id, server_round, {PURE: epsilon}, budget, delta)

    def _record(
        self,
        file: IO[bytes],
        run_id: str,
        server_round: int,
        entry: dict[str, float],
        budget: float,
        delta: float,
    ) -> None:
        """Write a release to the ledger if it is within the budget."""
        lines = [*self._lines(file), entry]
        if math.isfinite(budget) and _spent(lines, delta) > budget:
            raise PolicyError("the epsilon-budget of this node is spent")
        self._append(file, run_id, server_round, entry)

    def record_training(
        self,
        steps: tuple[float, float, int],
        run_id: str,
        server_round: int,
        budget: float = math.inf,
        delta: float = 1e-5,
    ) -> None:
        """Record a training by DP-SGD before it begins.

        Parameters
        ----------
        steps : tuple of float, float, int
            Sampling rate, noise multiplier and number of steps.
        run_id, server_round, budget, delta
            As for `record`. The budget is that of all trainings together, for each sample.

        Raises
        ------
        PolicyError
            If the training would exceed the budget. It is then not recorded.
        DamagedLedgerError
            If the ledger cannot be read.
        """
        with self._locked() as file:
            spent = added(self._steps(file), *steps)
            if math.isfinite(budget) and epsilon_spent(spent, delta) > budget:
                raise PolicyError("the epsilon-budget of this node is spent")
            entry = dict(zip(OF_STEPS, steps, strict=True))
            self._append(file, run_id, server_round, entry)

    def _append(
        self, file: IO[bytes], run_id: str, server_round: int, entry: dict[str, float]
    ) -> None:
        """Write a line, and wait until it is on the disk."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        line = {"time": time, "run": run_id, "round": server_round, **entry}
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        sync(self.file.parent)

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """Open the ledger for this process alone, after removing a line that was cut off."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("ab+") as file:
            if sys.platform != "win32":
                fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            yield file

    def _read(self, file: IO[bytes]) -> Counter[float]:
        """Return the number of releases of predictions with each noise multiplier."""
        return _with_noise(self._lines(file))

    def _steps(self, file: IO[bytes]) -> NDArray[np.float64]:
        """Return the steps of DP-SGD, as `fedkd_flwr.training.dp_sgd.added` counts them."""
        spent = np.empty((0, len(OF_STEPS)))
        for line in self._lines(file):
            if STEPS in line:
                spent = added(spent, line[RATE], line[NOISE], int(line[STEPS]))
        return spent

    def _lines(self, file: IO[bytes]) -> list[dict[str, float]]:
        """Return the numbers of each line by their names."""
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
    due = [PURE] if PURE in line else [NOISE] if STEPS not in line else OF_STEPS
    return {name: float(line[name]) for name in due}


def _spent(lines: Sequence[Mapping[str, float]], delta: float) -> float:
    """Return what releases of predictions and of labels have spent at `delta`.

    The epsilons of randomized response, whose delta is 0, add to that of Gaussian noise.
    """
    return epsilon_of(_with_noise(lines), delta) + math.fsum(line.get(PURE, 0.0) for line in lines)


def _with_noise(lines: Iterable[Mapping[str, float]]) -> Counter[float]:
    return Counter(line[NOISE] for line in lines if NOISE in line and STEPS not in line)
