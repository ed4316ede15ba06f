"""A node's ledger of its releases with noise, over all runs.

Each run counts its own releases, but what they reveal adds up. The ledger is a file beside the
node's memory, with one line in JSON per release. A line is on the disk before the release leaves
the node. A crash can therefore count a release that was not sent, and misses none that was.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from fedkd_flwr.clients.policy import PolicyError
from strategies.core.privacy import epsilon_of

if sys.platform != "win32":
    import fcntl

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
        return epsilon_of(self.releases(), delta)

    def record(
        self,
        noise_multiplier: float,
        run_id: str,
        server_round: int,
        budget: float = 0.0,
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
            Largest epsilon of all releases together; 0 for none.
        delta : float
            delta at which the budget is counted.

        Raises
        ------
        PolicyError
            If the release would exceed the budget. It is then not recorded.
        DamagedLedgerError
            If the ledger cannot be read.
        """
        line = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "run": run_id,
            "round": server_round,
            "noise-multiplier": noise_multiplier,
        }
        with self._locked() as file:
            releases = self._read(file)
            releases[noise_multiplier] += 1
            if budget and epsilon_of(releases, delta) > budget:
                raise PolicyError("the epsilon-budget of this node is spent")
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(self.file.parent)

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
        file.seek(0)
        # What follows the last line end was cut off by a crash, before its release left.
        lines = file.read().split(b"\n")[:-1]
        try:
            return Counter(float(json.loads(line)["noise-multiplier"]) for line in lines)
        except (ValueError, KeyError, TypeError):
            raise DamagedLedgerError(
                f"{self.file} is damaged; restore it from a copy, since the node cannot tell "
                "otherwise what it has released"
            ) from None


def _sync_folder(folder: Path) -> None:
    """Wait until the folder's list of files is on the disk."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
