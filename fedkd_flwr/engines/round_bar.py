"""The progress of a run that Python code starts: one bar, in notebooks and on terminals."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from fedkd_flwr.config import Configuration
from fedkd_flwr.runs import names_of_code, read_checkpoint
from strategies.core.rounds import Observer, OnRound, RoundRecord, RowObserver

Progress = bool | Literal["auto"]
"""Whether a bar is shown; ``"auto"`` shows it in notebooks and on terminals."""


def observer_of(
    configuration: Configuration, progress: Progress, on_round: OnRound | None
) -> Observer:
    """Return what follows a run for code that has started it."""
    someone_looks = sys.stderr.isatty() or "ipykernel" in sys.modules
    follow = on_round or (lambda row: None)
    if someone_looks if progress == "auto" else progress:
        run = configuration.run
        return RoundBar(run.strategy, run.plan.num_server_rounds, follow)
    return RowObserver(follow)


class RoundBar(RowObserver):
    """A bar over the rounds with accuracy and time left; it begins with the run directory."""

    def __init__(self, title: str, rounds: int, on_round: OnRound) -> None:
        super().__init__(on_round)
        self._title, self._rounds = title, rounds
        self._bar: tqdm[None] | None = None

    def run_started(self, run: Any) -> None:
        """Show where the run is, and rounds that it has."""
        bar = self._begin(len(run.round_rows))
        if not bar.disable:
            bar.write(f"Run directory: {run.path}", file=sys.stderr)

    def round_finished(self, record: RoundRecord) -> None:
        """Show a finished round and its accuracy."""
        bar = self._bar or self._begin(record.server_round - 1)
        if (accuracy := record.row["accuracy_mean"]) is not None:
            bar.set_postfix(accuracy=f"{accuracy:.1%}")
        bar.update()
        super().round_finished(record)

    def run_finished(self, summary: Mapping[str, Any]) -> None:
        """Leave the bar as it is."""
        self.run_stopped()

    def run_stopped(self) -> None:
        """Leave the bar as it is."""
        if self._bar:
            self._bar.close()

    def _begin(self, done: int) -> "tqdm[None]":
        self._bar = tqdm(desc=self._title, total=self._rounds, initial=done, unit="round")
        return self._bar


@contextmanager
def saying_how_to_go_on(configuration: Configuration) -> Iterator[None]:
    """Add to a Ctrl-C what the stopped run is good for."""
    try:
        yield
    except KeyboardInterrupt as stop:
        path, names = Path(configuration.run.output_dir), names_of_code(configuration.flat())
        modules = sorted({name.partition(":")[0] for name in names})
        allowed = f", allow_code={modules}" if modules else ""
        if completed := read_checkpoint(path).completed_rounds:
            stop.add_note(
                f"Stopped after round {completed} of {configuration.run.plan.num_server_rounds}. "
                f"Look at it with fedkd_flwr.load_run({str(path)!r}{allowed}), continue with "
                "fedkd_flwr.resume, or end it with fedkd_flwr.resume(..., stop=True)."
            )
        raise
