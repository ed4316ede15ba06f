"""The progress of ``fedkd run`` and ``fedkd sweep``: rounds, clients, accuracy and time left."""

from collections.abc import Mapping
from typing import Any, Self

from flwr.app import MessageType
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedkd_flwr.cli.output import console, say
from fedkd_flwr.sweeps import SweepProgress
from strategies.core.rounds import Observer, RoundRecord

DOES = {
    MessageType.TRAIN: "training",
    MessageType.EVALUATE: "evaluating",
    MessageType.QUERY: "connecting",
}
"""What clients do, by the type of the message that they answer."""


class Display:
    """Progress bars that are shown within a ``with`` block."""

    _progress: Progress

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._progress.stop()


class RunProgress(Display, Observer):
    """A bar over the rounds of a run; it also moves while clients answer.

    `verbose` prints Flower's whole log instead of only its warnings.
    """

    reads_log = True

    def __init__(self, title: str, rounds: int, verbose: bool = False) -> None:
        self._verbose = verbose
        self._completed = 0
        # Replies of the previous round, and of the finished exchanges of this one.
        self._expected, self._answered = 0, 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("round {task.fields[round]}/{task.total}  {task.fields[accuracy]}"),
            TextColumn("{task.fields[doing]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console(),
        )
        self._task = self._progress.add_task(title, total=rounds, round=0, accuracy="", doing="")

    def __exit__(self, *details: object) -> None:
        self._progress.update(self._task, doing="")
        super().__exit__(*details)

    def round_finished(self, record: RoundRecord) -> None:
        """Show a finished round and its accuracy."""
        row = record.row
        self._completed = row["round"]
        self._expected, self._answered = self._answered, 0
        self._progress.update(
            self._task, completed=self._completed, round=self._completed, doing=""
        )
        if row["accuracy_mean"] is not None:
            self._progress.update(self._task, accuracy=f"accuracy {row['accuracy_mean']:.1%}")

    def clients_answered(self, message_type: str, done: int, total: int) -> None:
        """Show how many clients have replied."""
        self._progress.update(
            self._task, doing=f"{DOES.get(message_type, message_type)} {done}/{total} clients"
        )
        if message_type == MessageType.QUERY:
            return
        answered = self._answered + done
        if done == total:
            self._answered = answered
        # The number of replies in the first round is not known yet: at least this exchange's.
        share = min(1.0, answered / (self._expected or total))
        self._progress.update(self._task, completed=self._completed + share)

    def line_logged(self, line: str) -> None:
        """Print a line of Flower's log."""
        if self._verbose or "WARNING" in line:
            say(line, to=self._progress.console)


class SweepDisplay(Display):
    """A bar over the runs, and below it one over the rounds of each run in progress.

    On a terminal, bars are shown during the sweep. The lines remain afterwards. Runs that are
    `done` include earlier ones.
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
