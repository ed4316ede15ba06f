"""The progress bar of ``fedkd run``: rounds, clients, accuracy and time left."""

from typing import Self

from flwr.app import MessageType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedkd_flwr.cli.output import console, say
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

    Parameters
    ----------
    title : str
        Label of the bar.
    rounds : int
        Planned rounds.
    verbose : bool
        Whether to print Flower's whole log instead of only its warnings.
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
