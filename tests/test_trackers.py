"""Trackers of experiments: what they hold is what the run directory holds, and nothing more."""

import struct
import sys

import pytest
from helpers import run_with, stopped

import fedkd_flwr
from fedkd_flwr.config import ConfigError
from fedkd_flwr.config.run_config import TRACKERS
from strategies.core.replies import TooFewRepliesError

SMALLEST = {"strategy": "local", "models": "mlp", "max-samples": 240, "num-clients": 2}


def numbers_of(row, without=("round", "partition_id")):
    values = {name: value for name, value in row.items() if name not in without}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def expected_series(run):
    """Return what a tracker has to hold of a run: [(round, value), …] by name."""
    series = {}
    for row in run.round_rows:
        for name, value in numbers_of(row).items():
            series.setdefault(name, []).append((row["round"], pytest.approx(value)))
    for row in run.client_rows:
        for name, value in numbers_of(row).items():
            name = f"client_{name}/{row['partition_id']}"
            series.setdefault(name, []).append((row["round"], pytest.approx(value)))
    return series


def without_summary(series):
    return {name: points for name, points in series.items() if not name.startswith("summary/")}


def failures_in(warnings):
    return [warning for warning in warnings if "continues without it" in warning]


@pytest.fixture(scope="module")
def offline():
    """An environment in which trackers have no account, and no network: nothing is at the proxy."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            patch.setenv(name, "http://127.0.0.1:9")
            patch.setenv(name.lower(), "http://127.0.0.1:9")
        for name in ("NO_PROXY", "no_proxy", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
            patch.delenv(name, raising=False)
        patch.setenv("WANDB_MODE", "offline")
        yield


@pytest.fixture(scope="module")
def tracked(offline, tmp_path_factory):
    from conftest import SMALL

    folder = tmp_path_factory.mktemp("tracked") / "run"
    settings = {**SMALL, **SMALLEST, "num-server-rounds": 3, "tracker-clients": True}
    settings |= {"tracker": ",".join(TRACKERS)}
    yield fedkd_flwr.resume(stopped(settings, folder, last_round=2))
    sys.modules["wandb"].teardown()


@pytest.mark.slow
def test_tensorboard_holds_the_rounds_and_each_once(tracked):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tracked.path / "tensorboard")).Reload()
    tags = events.Tags()
    found = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags["scalars"]}
    assert without_summary(found) == expected_series(tracked)
    mean = tracked.summary["last_round"]["accuracy_mean"]
    assert found["summary/last_round.accuracy_mean"] == [(3, pytest.approx(mean))]
    legs = events.Tensors("settings/text_summary")
    assert [leg.step for leg in legs] == [0, 2]
    assert all(b"| learning-rate | 0.05 |" in leg.tensor_proto.string_val[0] for leg in legs)


def test_mlflow_holds_the_rounds_in_one_run(tracked):
    from mlflow import MlflowClient

    client = MlflowClient((tracked.path / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("fedkd-flwr").experiment_id
    (run,) = client.search_runs([experiment])
    histories = {
        name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    assert without_summary(histories) == expected_series(tracked)
    assert run.data.metrics["summary/rounds"] == 3
    assert run.data.params == {key: str(value) for key, value in tracked.config.items()}
    assert run.info.status == "FINISHED"


def wandb_records(file):
    """Yield the records of a file of wandb: a log of LevelDB, in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    content, position, part = file.read_bytes(), 7, b""
    while position + 7 <= len(content):
        left_in_block = 32768 - position % 32768
        if left_in_block < 7:
            position += left_in_block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        part += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # the whole record, or its last part
            record, part = wandb_internal_pb2.Record.FromString(part), b""
            yield record


def test_wandb_keeps_both_legs_under_one_id(tracked):
    legs = sorted((tracked.path / "wandb").glob("offline-run-*"))
    assert len(legs) == 2
    found, mean = {}, None
    for leg in legs:
        (file,) = leg.glob("*.wandb")
        assert file.stem == f"run-{tracked.description['id']}"
        for record in wandb_records(file):
            for item in record.history.item:
                name = item.key or "/".join(item.nested_key)
                if not name.startswith("_"):
                    point = (record.history.step.num, float(item.value_json))
                    found.setdefault(name, []).append(point)
            for item in record.summary.update:
                if (item.key or item.nested_key[0]) == "summary/last_round.accuracy_mean":
                    mean = float(item.value_json)
    assert found == expected_series(tracked)
    assert mean == tracked.summary["last_round"]["accuracy_mean"]


def test_a_tracker_that_comes_later_gets_the_rounds_before(small, offline, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fedkd_flwr.run({**small, **SMALLEST, "num-server-rounds": 1}, output_dir=tmp_path)
    run = fedkd_flwr.resume(tmp_path, num_server_rounds=2, tracker="tensorboard")
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    found = [(event.step, event.value) for event in events.Scalars("loss_mean")]
    assert found == expected_series(run)["loss_mean"]
    assert "client_loss/0" not in events.Tags()["scalars"]


def test_a_tracker_that_fails_is_one_warning(small, offline, tmp_path, logged, monkeypatch):
    """One cannot begin, since its server is not there; the other loses its folder on the way."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (tmp_path / "tensorboard").write_text("no folder")
    settings = {**small, **SMALLEST, "tracker": "mlflow,tensorboard"}
    run = fedkd_flwr.run(settings, output_dir=tmp_path)
    assert len(run.round_rows) == 2
    assert run.finished
    warnings = failures_in(logged())
    for name, warning in zip(("mlflow", "tensorboard"), warnings, strict=True):
        assert warning.startswith(f"{name} failed, and the run continues without it: ")
        assert "\n" not in warning


def test_a_run_without_a_round_leaves_no_tracker_behind(small, offline, tmp_path):
    def answer_nobody(message, context):
        raise RuntimeError("out of memory")

    settings = {**small, **SMALLEST, "tracker": "tensorboard,mlflow"}
    with pytest.raises(TooFewRepliesError):
        run_with(answer_nobody, settings, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_that_is_not_installed_is_refused_first(name, small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    extra = rf"tracker = {name} is not installed .*'fedkd-flwr\[{name}\]'"
    with pytest.raises(ConfigError, match=extra):
        fedkd_flwr.run({**small, "tracker": name}, output_dir=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
