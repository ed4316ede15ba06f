"""Tracebacks of failing clients: logged once per distinct error, on the client's machine."""

import sys
from types import SimpleNamespace

import pytest
from helpers import breaking, run_with

from fedkd_flwr.client_app import TRACEBACKS, explain_failures
from fedkd_flwr.clients.tracebacks import Tracebacks
from fedkd_flwr.training.loop import DivergedError
from strategies.core.replies import InvalidReplyError


def fail_first(reply):
    raise KeyError("first")


def fail_second(reply):
    raise KeyError("second")


def raised(change):
    try:
        change(None)
    except KeyError as error:
        return error


def test_a_traceback_is_logged_once_per_error(logged):
    tracebacks = Tracebacks()
    for change, partition_id in ((fail_first, 0), (fail_first, 1), (fail_second, 2)):
        tracebacks.log_once(raised(change), partition_id)
    lines = logged()
    assert [line.split()[1] for line in lines if "failed" in line] == ["0", "2"]
    assert sum("in fail_first" in line for line in lines) == 1
    assert [line for line in lines if line.startswith("KeyError")] == [
        "KeyError: 'first'",
        "KeyError: 'second'",
    ]
    assert not any("\n" in line for line in lines)


@pytest.mark.parametrize("error", [DivergedError("diverged"), InvalidReplyError("invalid")])
def test_errors_of_this_project_explain_themselves(error, logged):
    Tracebacks().log_once(error, 0)
    assert logged() == []


def test_a_run_shows_file_and_line_of_a_failing_client(small, tmp_path, logged):
    app = breaking(fail_first, 1, answer=breaking(fail_first, 2))
    small |= {"strategy": "local", "models": "mlp"}
    run, _ = run_with(app, small, tmp_path / "run")
    lines = logged()
    # Two clients fail in two rounds; client 1 by way of one more function than client 2.
    assert sum(line.startswith("Traceback") for line in lines) == 2
    assert any(__file__ in line and "in fail_first" in line for line in lines)
    assert sum("Dropped from this round" in line for line in lines) == 4
    # What left the client is the class and the message.
    failures = run.clients["failure"].dropna()
    assert set(failures) == {"it failed: KeyError: 'first'"}


@pytest.mark.parametrize("is_ray", [True, False])
def test_only_processes_of_ray_log_in_the_client_app(is_ray, logged, monkeypatch):
    monkeypatch.setattr(TRACEBACKS, "_logged", set())
    if is_ray:
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    else:
        monkeypatch.delitem(sys.modules, "ray", raising=False)

    def serve(message, context):
        fail_first(None)

    context = SimpleNamespace(node_config={"partition-id": 3, "trust-server": True})
    with pytest.raises(KeyError):
        explain_failures(None, context, serve)
    assert any("in fail_first" in line for line in logged()) == is_ray
