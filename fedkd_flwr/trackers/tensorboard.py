"""TensorBoard: event files in the run directory, ``tensorboard --logdir RUN``."""

from collections.abc import Mapping

from torch.utils.tensorboard import SummaryWriter

from fedkd_flwr.runs.reading import Run


class TensorBoard:
    """Writes scalars by round, the settings as text and, at the end, as hyperparameters.

    Parameters
    ----------
    run : Run
        The run that starts or is continued.

    Attributes
    ----------
    is_new : bool
        Whether the folder had no events.
    """

    def __init__(self, run: Run) -> None:
        folder = run.path / "tensorboard"
        self.is_new = not any(folder.glob("events.out.*"))
        self._config = run.config
        self._round = len(run.round_rows)
        # Hide what was written after the last complete round before the run stopped.
        purged_from = None if self.is_new else self._round + 1
        self._writer = SummaryWriter(str(folder), purge_step=purged_from)
        settings = "\n".join(f"| {key} | {value} |" for key, value in run.config.items())
        table = f"| setting | value |\n|---|---|\n{settings}"
        self._writer.add_text("settings", table, self._round)

    def log(self, server_round: int, values: Mapping[str, float]) -> None:
        """Write the values of one round; they are visible at once."""
        self._round = server_round
        for name, value in values.items():
            self._writer.add_scalar(name, value, server_round)
        self._writer.flush()

    def finish(self, values: Mapping[str, float]) -> None:
        """Write the summary beside the settings."""
        self._writer.add_hparams(self._config, dict(values), run_name=".", global_step=self._round)
        self._writer.close()

    def stop(self) -> None:
        """Close the event file."""
        self._writer.close()
