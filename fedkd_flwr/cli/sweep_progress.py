"""The progress of ``fedkd sweep``: a line when a run starts or ends, and bars."""

from collections.abc import Mapping
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedkd_flwr.cli.output import console, say
from fedkd_flwr.cli.progress import Display
from fedkd_flwr.sweeps import SweepProgress


class SweepDisplay(Display):
    """A bar over the runs, and below it one over the rounds of each run in progress.

    On a terminal, bars are shown during the sweep. The lines remain afterwards.

    Attributes
    ----------
    failed : int
        Runs that failed.
    done : int
        Finished runs, earlier ones included.
    """

    def __init__(self) -> None:
        self.failed = 0
        self.done = 0
        # Bars of the runs in progress, by run name.
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}  {task.fields[status]}"),
            TimeElapsedColumn(),
            console=console(),
            transient=True,
        )
        self._runs = self._progress.add_task("runs", total=None, status="")

    def on_run(self, progress: SweepProgress) -> None:
        """Print that a run has started or ended."""
        result = (progress.run.summary or {})["last_round"] if progress.run else None
        status = f"accuracy {result['accuracy_mean']:.1%}" if result else progress.error
        if progress.state == "continued":
            status = f"after round {progress.completed}"
        if progress.missing_extras:
            status += f" (finished earlier, without {', '.join(progress.missing_extras)})"
        line = f"{progress.number}/{progress.total} {progress.label}: {progress.state} {status}"
        say(line.rstrip(), to=self._progress.console)
        if progress.state in ("started", "continued"):
            self._bars[progress.name] = self._progress.add_task(
                f"  {progress.label}",
                total=progress.rounds,
                completed=progress.completed,
                status="",
            )
            return
        self.failed += progress.state == "failed"
        self.done += progress.state in ("finished", "skipped")
        self._progress.update(self._runs, total=progress.total, advance=1)
        if progress.name in self._bars:
            self._progress.remove_task(self._bars.pop(progress.name))

    def on_round(self, name: str, row: Mapping[str, Any]) -> None:
        """Show the last finished round of a run."""
        accuracy = row["accuracy_mean"]
        status = "" if accuracy is None else f"accuracy {accuracy:.1%}"
        self._progress.update(self._bars[name], completed=row["round"], status=status)
