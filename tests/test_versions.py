"""Versions of a node's packages: which differences are refused, and which are logged."""

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

import fedkd_flwr
from strategies.core import membership, replies, versions
from strategies.core.flower import TaskIdentity

OURS = {"flwr": "1.41.0", "fedkd-flwr": "0.1.0", "torch": "2.15.0"}


@pytest.mark.parametrize(
    ("sent", "refused", "differs"),
    [
        ("flwr 1.41.0, fedkd-flwr 0.1.0, torch 2.15.0", False, False),
        ("flwr 1.41.2, fedkd-flwr 0.1.0, torch 2.14.0+cpu", False, True),
        ("flwr 1.40.0, fedkd-flwr 0.1.0, torch 2.15.0", True, True),
        ("flwr 2.41.0", True, True),
        ("fedkd-flwr 0.2.0", True, True),
        ("fedkd-flwr unknown", True, True),
        ("", False, False),
        ("evil 1, nothing", False, False),
    ],
)
def test_another_minor_version_of_flower_or_the_project_is_refused(sent, refused, differs):
    assert bool(versions.refusal(OURS, sent)) is refused
    assert bool(versions.difference(OURS, sent)) is differs


def test_text_is_read_as_it_is_written():
    assert versions.from_text(versions.as_text(OURS)) == OURS
    assert versions.refusal(OURS, "flwr 1.40.0") == (
        "has flwr 1.40.0 instead of 1.41.0: install the server's versions on the node"
    )


def test_a_reply_of_another_version_is_not_used(monkeypatch):
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    content = RecordDict(
        {"info": ConfigRecord({"partition-id": 0, "versions": "flwr 1.40.0, torch 2.15.0"})}
    )
    reply = Message(content, reply_to=Message(RecordDict(), 1, "train"))
    with pytest.raises(replies.InvalidReplyError, match=r"has flwr 1\.40\.0 instead of 1\.42"):
        replies.read_reply(reply, 0, {}, ())


def test_a_node_that_differs_is_left_out_or_said(small, tmp_path, monkeypatch, caplog):
    """The server's versions are changed here, since all clients are in this process."""
    real = versions.installed_versions()

    def server_has(**changed):
        for module in (membership, replies):
            monkeypatch.setattr(module, "installed_versions", lambda: {**real, **changed})

    server_has(torch="9.9.9")
    with caplog.at_level("WARNING"):
        run = fedkd_flwr.run(small, strategy="local", output_dir=tmp_path / "said")
    assert list(run.rounds["failures"]) == [0] * len(run.rounds)
    said = [record.getMessage() for record in caplog.records]
    assert f"client 0 has torch {real['torch']} instead of 9.9.9; its numbers may differ" in said
    server_has(flwr="1.99.0")
    with pytest.raises(RuntimeError, match=r"has flwr .+ instead of 1\.99\.0: install"):
        fedkd_flwr.run(small, strategy="local", output_dir=tmp_path / "refused")
