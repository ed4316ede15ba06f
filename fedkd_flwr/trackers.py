"""Trackers of experiments: observers that write a run to TensorBoard, W&B or MLflow as it goes."""

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from logging import WARNING
from typing import Any, NamedTuple

from fedkd_flwr.config.run_config import flatten
from fedkd_flwr.runs.reading import Run
from strategies.core.flower import log
from strategies.core.rounds import Observer, RoundRecord

Numbers = dict[str, float]


class Tracker(NamedTuple):
    """Whether an open tracker has no round of the run yet, and what writes to it; else nothing."""

    is_new: bool = False
    write: Callable[[int, Numbers], Any] = lambda *_: None
    close: Callable[[bool], Any] = lambda finished: None


class TrackerObserver(Observer):
    """Writes a run to the tracker `name`; if that fails, the run continues without it."""

    def __init__(self, name: str, with_clients: bool) -> None:
        self._name, self._with_clients, self._tracker = name, with_clients, Tracker()

    def run_started(self, run: Run) -> None:
        """Open the tracker, and write the earlier rounds if it has none."""
        trackers = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
        self._tracker = self._attempt(trackers[self._name], run) or Tracker()
        for row in run.round_rows if self._tracker.is_new else ():
            self._write(row, (own for own in run.client_rows if own["round"] == row["round"]))

    def round_finished(self, record: RoundRecord) -> None:
        """Write a round."""
        self._write(record.row, record.clients)

    def run_finished(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, and close the tracker."""
        values = _numbers(flatten(summary), "summary/{}")
        self._attempt(self._tracker.write, summary["rounds"], values)
        self._attempt(self._tracker.close, True)

    def run_stopped(self) -> None:
        """Close the tracker."""
        self._attempt(self._tracker.close, False)

    def _write(self, row: Mapping[str, Any], clients: Iterable[Mapping[str, Any]]) -> None:
        values = _numbers(row)
        for own in clients if self._with_clients else ():
            # Not the name of a round's column: MLflow stores a column as a file, these in a folder.
            values |= _numbers(own, f"client_{{}}/{own['partition_id']}")
        self._attempt(self._tracker.write, row["round"], values)

    def _attempt(self, step: Callable[..., Any], *given: Any) -> Any:
        try:
            return step(*given)
        except Exception as error:  # of another library, which the run does not depend on
            self._tracker = Tracker()
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            log(WARNING, "%s failed, and the run continues without it: %s", self._name, reason)


def _numbers(row: Mapping[str, Any], template: str = "{}") -> Numbers:
    """Return the finite numbers in a row by name, without those that say which row it is."""
    return {
        template.format(name): float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and math.isfinite(value)
        if name not in ("round", "partition_id")
    }


def _tensorboard(run: Run) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    folder, rounds = run.path / "tensorboard", len(run.round_rows)
    is_new = not any(folder.glob("events.out.*"))
    # Hides what was written after the last complete round before the run stopped.
    writer = SummaryWriter(str(folder), purge_step=None if is_new else rounds + 1)
    settings = "".join(f"| {key} | {value} |\n" for key, value in run.config.items())
    writer.add_text("settings", f"| setting | value |\n|---|---|\n{settings}", rounds)

    def write(server_round: int, values: Numbers) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, server_round)
        writer.flush()

    return Tracker(is_new, write, lambda finished: writer.close())


def _wandb(run: Run) -> Tracker:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # nothing goes to third parties
    import wandb

    # wandb would ask for the key below the progress bar, and wait.
    needs_key = wandb.setup().settings.mode not in ("offline", "dryrun", "disabled")
    if needs_key and not wandb.login(prompt=False, verify=False):
        raise PermissionError("there is no API key; type `wandb login` or set WANDB_MODE=offline")
    project, own = os.environ.get("WANDB_PROJECT", "fedkd-flwr"), run.description["id"]
    is_new = not any((run.path / "wandb").glob(f"*run-*-{own}"))
    quiet = wandb.Settings(console="off", silent=True, resume="allow", reinit="create_new")
    where = {"project": project, "id": own, "name": run.path.name, "dir": run.path}
    opened = wandb.init(**where, config=run.config, settings=quiet)

    def write(server_round: int, values: Numbers) -> None:
        if server_round >= opened.step:
            opened.log(values, step=server_round, commit=True)
        else:  # wandb takes no earlier step, and a summary comes after the last round
            opened.summary.update(values)

    return Tracker(is_new, write, lambda finished: opened.finish(exit_code=0 if finished else 1))


def _mlflow(run: Run) -> Tracker:
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a database starts in ten seconds
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient, entities

    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or (run.path / "mlflow").as_uri())
    name, run_id = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "fedkd-flwr", run.description["id"]
    found = client.get_experiment_by_name(name)
    place = found.experiment_id if found else client.create_experiment(name)
    before = client.search_runs([place], f"tags.`fedkd-run` = '{run_id}'")
    tags = {"fedkd-run": run_id, "mlflow.runName": run.path.name}
    own = (before[0] if before else client.create_run(place, tags=tags)).info.run_id
    client.update_run(own, status="RUNNING")
    for key, value in () if before else run.config.items():
        client.log_param(own, key, value)

    def write(server_round: int, values: Numbers) -> None:
        now = int(time.time() * 1000)
        metrics = [entities.Metric(name, values[name], now, server_round) for name in values]
        for start in range(0, len(metrics), 1000):  # the most of one request
            client.log_batch(own, metrics=metrics[start : start + 1000])

    states = ("KILLED", "FINISHED")
    return Tracker(not before, write, lambda end: client.set_terminated(own, states[end]))
