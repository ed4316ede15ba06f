"""Failing clients: own code stops a run, other tracebacks are logged once per distinct error."""

import json
import sys
import traceback
from types import SimpleNamespace

import pytest
from flwr.app import Error, Message, RecordDict
from helpers import breaking, run_with

import fedkd_flwr
from fedkd_flwr.cli.running import print_result
from fedkd_flwr.client_app import TRACEBACKS, explain_failures
from fedkd_flwr.clients.fedprox import FedProxClient
from fedkd_flwr.clients.tracebacks import (
    ClientCodeError,
    Tracebacks,
    stop_at_reported_failures,
    traceback_of_own_code,
)
from strategies.fedprox import FedProx


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
    """They also tell the server where own code failed."""
    monkeypatch.setattr(TRACEBACKS, "_logged", set())
    if is_ray:
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    else:
        monkeypatch.delitem(sys.modules, "ray", raising=False)

    def serve(message, context):
        fail_first(None)

    node = {"partition-id": 3, "trust-server": True}
    context = SimpleNamespace(node_config=node, run_config={"on-client-error": "stop"})
    with pytest.raises(ClientCodeError if is_ray else KeyError) as failed:
        explain_failures(None, context, serve)
    assert any("in fail_first" in line for line in logged()) == is_ray
    if is_ray:
        reasons = (f"<class 'RayTaskError'>:<'…\nray.E: {failed.value}'>", "killed")
        asked = Message(RecordDict(), 1, "train")
        replies = [Message(Error(code=1, reason=reason), reply_to=asked) for reason in reasons]
        told = (
            r"^Client 3 failed in own code: KeyError: 'first' \(test_tracebacks\.py, line \d+, in "
        )
        with pytest.raises(ClientCodeError, match=told):
            stop_at_reported_failures(replies)
        stop_at_reported_failures(replies[1:])


# ---- Own code --------------------------------------------------------------------------


class Failing(FedProxClient):
    """Clients 1 and 2 fail in round 2."""

    def train(self, received, server_round, phase):
        if server_round == 2 and self.partition_id in (1, 2):
            json.loads("{", cls=None)
        return super().train(received, server_round, phase)


@pytest.fixture
def failing(small):
    fedkd_flwr.register("failing", FedProx, Failing)
    return {**small, "strategy": "failing", "models": "mlp"}


@pytest.mark.parametrize(("cohort", "who"), [("off", "Client 1"), ("on", "Clients 1, 2")])
def test_own_code_that_fails_stops_the_run(cohort, who, failing, tmp_path, logged, monkeypatch):
    settings, path = {**failing, "cohort": cohort}, tmp_path / "run"
    with pytest.raises(
        ClientCodeError, match=f"^{who} failed in own code: JSONDecodeError: "
    ) as stop:
        fedkd_flwr.run(settings, output_dir=path)
    assert "(test_tracebacks.py, line " in str(stop.value) and "in train)" in str(stop.value)
    assert isinstance(stop.value.__cause__, json.JSONDecodeError)
    # `%debug` opens at the last frame: own code, and what it called.
    names = [frame.name for frame in traceback.extract_tb(stop.value.__traceback__)]
    assert names[-4:] == ["train", "loads", "decode", "raw_decode"]
    assert not any("Dropped" in line for line in logged())
    monkeypatch.setattr(Failing, "train", FedProxClient.train)
    resumed = fedkd_flwr.resume(path, accept_changes=True)
    assert resumed.rounds["failures"].tolist() == [0, 0]


def test_own_code_that_fails_can_be_a_failed_reply(failing, tmp_path, logged, capsys):
    settings = {**failing, "on-client-error": "drop", "num-server-rounds": 3}
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    assert run.rounds["failures"].tolist() == [0, 2, 0]
    assert any("in train" in line for line in logged())
    told = [f"client {n} gave no valid reply in 1 of 3 rounds" for n in (1, 2)]
    print_result(run)
    assert capsys.readouterr().out.splitlines()[-1] == f"Failures: {', '.join(told)}"


def called_in(file, module, call):
    """Return what a call raises from a line of a file of a module."""
    names = {"__name__": module}
    exec(compile("def call(f):\n    f()", file, "exec"), names)
    try:
        names["call"](call)
    except Exception as error:
        error.__traceback__ = error.__traceback__.tb_next  # without the frame of this test
        return error


@pytest.mark.parametrize(
    ("file", "module", "is_own"),
    [
        ("/home/ada/mine.py", "mine", True),
        ("/tmp/ipykernel_7/123.py", "__main__", True),
        ("<stdin>", "__main__", True),
        ("<string>", "mine", False),
        ("pandas/_libs/index.pyx", "pandas._libs.index", False),
        ("/home/ada/.venv/lib/python3.11/site-packages/torch/nn.py", "torch.nn", False),
        (json.__file__, "json", False),
        (fedkd_flwr.__file__, "fedkd_flwr", False),
    ],
)
def test_what_is_own_code(file, module, is_own):
    error = called_in(file, module, lambda: json.loads("{"))
    # The lambda above is of this file, which is own code too.
    error.__traceback__.tb_next = error.__traceback__.tb_next.tb_next
    assert (traceback_of_own_code(error) is not None) == is_own
