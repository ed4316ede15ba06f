"""What ``fedkd sweep`` shows while it goes: a line for each run's start and end, and bars."""

from collections.abc import Mapping
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedkd_flwr.cli.output import console, say
from fedkd_flwr.cli.progress import Display
from fedkd_flwr.sweeps import SweepProgress


class SweepDisplay(Display):
    """A bar over the runs, and below it one over the rounds of each run in progress.

    The bars are there while the sweep goes, on a terminal; the lines remain.

    Attributes
    ----------
    failed : int
        Runs that failed.
    done : int
        Runs that are finished, now or before.
    """

    def __init__(self) -> None:
        self.failed = 0
        self.done = 0
        # Without the bars of runs that have ended.
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}  {task.fields[told]}"),
            TimeElapsedColumn(),
            console=console(),
            transient=True,
        )
        self._runs = self._progress.add_task("runs", total=None, told="")

    def on_run(self, progress: SweepProgress) -> None:
        """Say that a run has started or ended."""
        result = (progress.run.summary or {})["last_round"] if progress.run else None
        told = f"accuracy {result['accuracy_mean']:.1%}" if result else progress.error
        if progress.state == "continued":
            told = f"after round {progress.completed}"
        if progress.done_without:
            told += f" (it was done without {', '.join(progress.done_without)})"
        line = f"{progress.number}/{progress.total} {progress.label}: {progress.state} {told}"
        say(line.rstrip(), to=self._progress.console)
        if progress.state in ("started", "continued"):
            self._bars[progress.name] = self._progress.add_task(
                f"  {progress.label}",
                total=progress.rounds,
                completed=progress.completed,
                told="",
            )
            return
        self.failed += progress.state == "failed"
        self.done += progress.state in ("finished", "skipped")
        self._progress.update(self._runs, total=progress.total, advance=1)
        if progress.name in self._bars:
            self._progress.remove_task(self._bars.pop(progress.name))

    def on_round(self, name: str, row: Mapping[str, Any]) -> None:
        """Show which round a run has finished."""
        accuracy = row["accuracy_mean"]
        told = "" if accuracy is None else f"accuracy {accuracy:.1%}"
        self._progress.update(self._bars[name], completed=row["round"], told=told)
