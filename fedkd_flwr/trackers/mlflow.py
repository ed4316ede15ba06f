"""MLflow: a folder in the run directory, or the server that ``MLFLOW_TRACKING_URI`` names.

The experiment is that of ``MLFLOW_EXPERIMENT_NAME``, or ``fedkd-flwr``.
"""

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

# MLflow prefers databases, which take ten seconds to start; folders must be allowed.
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
# Nothing is sent to third parties by default.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from fedkd_flwr.runs.reading import Run

RUN_ID = "fedkd-run"
"""Tag with the run's id, by which a continued run is found."""

METRICS_AT_ONCE, PARAMS_AT_ONCE = 1000, 100
"""Limits of one request."""


class MLflow:
    """Writes a run with its settings as parameters and one step per round.

    Parameters
    ----------
    run : Run
        The run that starts or is continued.

    Attributes
    ----------
    is_new : bool
        Whether the experiment had no run of this id, or rounds of it are done again.
    """

    def __init__(self, run: Run) -> None:
        folder = (run.path / "mlflow").as_uri()
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or folder)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "fedkd-flwr"
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        tag = f"tags.`{RUN_ID}` = '{run.description['id']}'"
        before = self._client.search_runs([experiment], tag)
        # MLflow cannot remove a round, so those that are done again begin a new run.
        self.is_new = not before or run.repeats_rounds
        self._round = len(run.round_rows)
        # The newest comes first.
        self._id = self._begin(experiment, run) if self.is_new else before[0].info.run_id
        self._client.update_run(self._id, status="RUNNING")

    def log(self, server_round: int, values: Mapping[str, float]) -> None:
        """Write the values of one round."""
        self._round = server_round
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, server_round) for name, value in values.items()]
        for some in _in_lots(metrics, METRICS_AT_ONCE):
            self._client.log_batch(self._id, metrics=some)

    def finish(self, values: Mapping[str, float]) -> None:
        """Write the summary, and mark the run as finished."""
        self.log(self._round, values)
        self._client.set_terminated(self._id)

    def stop(self) -> None:
        """Mark the run as stopped."""
        self._client.set_terminated(self._id, "KILLED")

    def _begin(self, experiment: str, run: Run) -> str:
        tags = {RUN_ID: run.description["id"]}
        begun = self._client.create_run(experiment, tags=tags, run_name=run.path.name)
        run_id: str = begun.info.run_id
        params = [Param(key, str(value)) for key, value in run.config.items()]
        for some in _in_lots(params, PARAMS_AT_ONCE):
            self._client.log_batch(run_id, params=some)
        return run_id


def _in_lots(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
