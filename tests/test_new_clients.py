"""New clients: kept out of the training, personalized after it, reported separately.

Results by method, computed by hand, are in `test_new_clients_by_hand`.
"""

import copy
import json

import numpy as np
import pytest
from helpers import breaking, most_of_them_slow, raising, replacing, run_with
from test_comparison import write_run

import fedkd_flwr
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.analysis.settings import IncomparableRunsError
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.engines import InProcessGrid, resolve_output
from fedkd_flwr.methods import METHODS
from fedkd_flwr.server_app import serve
from strategies.base import PersonalizedStrategy
from strategies.core.method_record import Need
from strategies.core.rounds import NEW_CLIENTS

SAME = ["round", "partition_id", "accuracy", "loss", "numbers_up", "numbers_down"]


def settings_for(strategy, small, **changes):
    one_model = Need.ONE_ARCHITECTURE in METHODS[strategy].record.needs
    models = "mlp" if one_model else "mlp,lenet"
    own = {"strategy": strategy, "models": models, "max-samples": 240, "new-clients": 0.25}
    return {**small, **own, "fedtgp.server-epochs": 1, **changes}


def new_clients_of(flat):
    return read_config(flat).run.server_plan().new_client_ids


class MessageLog:
    """Replies like the real app, and records the messages of each client and round."""

    def __init__(self):
        self.sent = []

    def __call__(self, message, context):
        if message.metadata.message_type != "query":
            config = message.content.config_records["config"]
            n = context.node_config["partition-id"]
            self.sent.append((n, config["trained-rounds"], config["phase"], config["server-round"]))
        return client_app(message, context)


# ---- Selection of new clients ----------------------------------------------------------


def test_new_clients_depend_only_on_seed_and_number(small):
    drawn = {
        name: new_clients_of(settings_for(name, small, **{"num-clients": 20, "seed": 3}))
        for name in ("local", "kt-pfl", "fedavg")
    }
    assert drawn["local"] == drawn["kt-pfl"] == drawn["fedavg"] == sorted(set(drawn["local"]))
    assert len(drawn["local"]) == 5
    others = new_clients_of(settings_for("local", small, **{"num-clients": 20, "seed": 4}))
    assert others != drawn["local"]
    plan = read_config(settings_for("local", small, **{"num-clients": 20})).run.plan
    assert (plan.num_new, plan.num_training, plan.sample_size) == (5, 15, 15)
    assert new_clients_of({**small, "strategy": "local"}) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"new-clients": 0.1}, "new-clients = 0.1 of 4 clients is less than one; .* least 0.25"),
        ({"new-clients": 0.9}, "new-clients = 0.9 of 4 clients leaves none in training; .* 0.75"),
        ({"new-clients": 1.0}, "new-clients = 1.0: it should be less than 1"),
        ({"new-clients": -0.1}, "new-clients = -0.1: it should be greater than or equal to 0"),
        (
            {"new-clients": 0.5, "min-replies": 3},
            "min-replies = 3 is more than .* round .2.; set it to at most 2, or a larger "
            r"fraction-train\.$",
        ),
        ({"new-clients": 0.5, "hypcluster.clusters": 3}, "hypcluster.clusters = 3 is more than"),
    ],
)
def test_invalid_shares_are_rejected(changes, sentence, small):
    flat = settings_for("hypcluster", small, **{"hypcluster.clusters": 2})
    with pytest.raises(ConfigError, match=sentence) as refused:
        read_config({**flat, **changes})
    assert "\n" not in str(refused.value)


# ---- Every method ----------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [*most_of_them_slow(METHODS), "examples.own_method:nearest"])
def test_a_new_client_is_personalized_once_and_does_not_change_the_server(
    strategy, small, tmp_path, monkeypatch
):
    rounds = []

    def watched(server, server_round):
        before = copy.deepcopy(server.saved_arrays())
        reception = receive(server, server_round)
        np.testing.assert_equal(server.saved_arrays(), before)
        rounds.append(server_round)
        return reception

    receive = PersonalizedStrategy.receive_new_clients
    monkeypatch.setattr(PersonalizedStrategy, "receive_new_clients", watched)
    named = strategy if strategy in METHODS else "kt-pfl"
    flat = {**settings_for(named, small), "strategy": strategy}
    (new,) = new_clients_of(flat)
    messages = MessageLog()
    run, _ = run_with(messages, flat, tmp_path / "run")
    # Only after the training does the new client get messages, and then only the new client.
    assert {n == new for n, trained, _, _ in messages.sent if trained} == {True}
    assert {n == new for n, trained, _, _ in messages.sent if not trained} == {False}
    assert [phase for n, _, phase, _ in messages.sent if n == new].count("evaluate") == 1
    assert new not in set(run.clients["partition_id"])
    assert rounds == [1, 2]
    # Its row and columns are separate; the round before has none.
    (row,) = run.table(NEW_CLIENTS).to_dict("records")
    assert (row["round"], row["partition_id"], row["failure"]) == (2, new, None)
    first, last = run.round_rows
    assert not [name for name in first if name.startswith("new_")]
    assert last["new_accuracy_mean"] == last["new_accuracy_min"] == row["accuracy"]
    assert (last["new_clients"], last["new_failures"], last["failures"]) == (1, 0, 0)
    assert last["new_bytes_down"] == row["bytes_down"]
    trained = run.clients[run.clients["round"] == 2]["accuracy"]
    assert last["accuracy_mean"] == pytest.approx(trained.mean())
    assert run.summary["new_clients"]["accuracy_mean"] == row["accuracy"]


def test_under_local_a_new_client_gets_the_model_of_a_participant(small, tmp_path):
    flat = settings_for("local", small, **{"new-clients": 0.5, "momentum": 0.9})
    apart = fedkd_flwr.run(flat, output_dir=tmp_path / "apart")
    whole = fedkd_flwr.run({**flat, "new-clients": 0.0}, output_dir=tmp_path / "whole")
    together = whole.clients[whole.clients["round"] == 2].set_index("partition_id")
    rows = apart.table(NEW_CLIENTS).set_index("partition_id")
    assert len(rows) == 2
    assert rows["loss"].to_dict() == together["loss"][rows.index].to_dict()
    short = fedkd_flwr.run({**flat, "new-client-rounds": 1}, output_dir=tmp_path / "short")
    first = whole.clients[whole.clients["round"] == 1].set_index("partition_id")
    rows = short.table(NEW_CLIENTS).set_index("partition_id")
    assert rows["loss"].to_dict() == first["loss"][rows.index].to_dict()


def test_models_of_new_clients_are_exported(small, tmp_path):
    flat = settings_for("kt-pfl", small, **{"models-dir": str(tmp_path / "models")})
    flat |= {"keep-best": True}
    run = fedkd_flwr.run(flat, output_dir=tmp_path / "run")
    (row,) = run.table(NEW_CLIENTS).to_dict("records")
    card = json.loads((tmp_path / "models" / f"{row['partition_id']}.json").read_text())
    assert card["metrics"]["correct"] == row["correct"]
    kept = {path.name for path in (tmp_path / "models").glob("round-*/*.safetensors")}
    assert f"{row['partition_id']}.safetensors" not in kept


def test_privacy_loss_of_new_clients_is_counted(small, tmp_path):
    noise = {
        "soft-predictions.clip-norm": 1.0,
        "soft-predictions.noise-multiplier": 1.0,
        "new-client-rounds": 5,
    }
    run = fedkd_flwr.run(settings_for("kt-pfl", small, **noise), output_dir=tmp_path / "run")
    last = run.round_rows[-1]
    assert last["new_epsilon"] > last["epsilon"] > 0


# ---- Failures --------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["train", "evaluate"])
def test_an_invalid_or_failing_new_client_affects_no_other(phase, small, tmp_path):
    flat = settings_for("kt-pfl", small, **{"new-clients": 0.5})
    bad, good = new_clients_of(flat)
    honest, _ = run_with(client_app, flat, tmp_path / "honest")
    predictions = np.full((flat["public-size"], 10), np.nan, dtype=np.float32)
    spoil = replacing(predictions=predictions) if phase == "train" else raising("gone")
    run, _ = run_with(breaking(spoil, bad, phase), flat, tmp_path / "run")
    rows = run.table(NEW_CLIENTS).set_index("partition_id")
    expected = honest.table(NEW_CLIENTS).set_index("partition_id")
    assert rows["loss"][good] == expected["loss"][good]
    assert ("NaN" if phase == "train" else "gone") in rows["failure"][bad]
    assert np.isnan(rows["loss"][bad])
    last = run.round_rows[-1]
    assert (last["new_clients"], last["new_failures"], last["failures"]) == (1, 1, 0)
    np.testing.assert_array_equal(run.clients[SAME].to_numpy(), honest.clients[SAME].to_numpy())


@pytest.mark.parametrize("strategy", ["kt-pfl", "fesem"])
def test_a_run_finishes_if_all_new_clients_fail(strategy, small, tmp_path):
    flat = settings_for(strategy, small)
    run, _ = run_with(breaking(raising("gone"), *new_clients_of(flat)), flat, tmp_path / "run")
    last = run.round_rows[-1]
    assert run.finished and last["accuracy_mean"] is not None
    assert (last["new_clients"], last["new_failures"]) == (0, 1)
    assert last["new_accuracy_mean"] is None


class PowerCut(BaseException):
    """Stops a run at once: no code may catch it."""


@pytest.mark.parametrize("strategy", ["kt-pfl", "persfl", "fedkma"])
def test_a_run_interrupted_at_new_clients_resumes_with_the_same_result(strategy, small, tmp_path):
    flat = settings_for(strategy, small, momentum=0.9)
    whole = fedkd_flwr.run(flat, output_dir=tmp_path / "whole")

    def app(message, context):
        config = message.content.config_records["config"]
        if config.get("trained-rounds") and config["server-round"] == 2:
            raise PowerCut
        return client_app(message, context)

    folder = tmp_path / "cut"
    configuration = resolve_output(read_config({**flat, "output-dir": str(folder)}), folder)
    with pytest.raises(PowerCut):
        serve(InProcessGrid(app, 4, configuration.flat()), configuration)
    resumed = fedkd_flwr.resume(folder)
    assert len(resumed.rounds) == 2
    assert resumed.table(NEW_CLIENTS).equals(whole.table(NEW_CLIENTS))
    assert resumed.clients[SAME].equals(whole.clients[SAME])


def test_a_node_that_restarts_at_new_clients_uses_the_current_state(small, tmp_path):
    """Its disk has the state of an earlier reception with more rounds."""
    flat = settings_for("local", small, **{"state-dir": str(tmp_path / "state")})
    run_with(client_app, flat, tmp_path / "run", **{"num-server-rounds": 3})

    def restarting(message, context):
        config = message.content.config_records["config"]
        if config.get("trained-rounds") and config["server-round"] == 2:
            context.state.clear()
        return client_app(message, context)

    more = {"resume": True, "num-server-rounds": 4}
    longer, _ = run_with(restarting, flat, tmp_path / "run", **more)
    whole, _ = run_with(
        client_app, {**flat, "state-dir": ""}, tmp_path / "whole", **{"num-server-rounds": 4}
    )
    losses = longer.table(NEW_CLIENTS)["loss"].iloc[1], whole.table(NEW_CLIENTS)["loss"].iloc[0]
    assert losses[0] == losses[1]


# ---- Reported separately ---------------------------------------------------------------


def write_new_clients(path, accuracies):
    rows = [
        {"round": 2, "partition_id": n, "accuracy": value, "failure": None}
        for n, value in accuracies.items()
    ]
    (path / f"{NEW_CLIENTS}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_compare_compares_new_clients_with_local(tmp_path):
    share = {"new-clients": 0.5, "num-clients": 4}
    for seed, own, alone in (
        (0, {1: 0.7, 3: 0.5}, {1: 0.6, 3: 0.6}),
        (1, {0: 0.9, 2: 0.7}, {0: 0.5, 2: 0.5}),
    ):
        write_new_clients(write_run(tmp_path, "kt-pfl", seed, [0.5, 0.5], **share), own)
        write_new_clients(write_run(tmp_path, "local", seed, [0.4, 0.4], **share), alone)
    compared = compare(tmp_path)
    row = compared.table.loc["kt-pfl"]
    assert row["new_accuracy"] == pytest.approx(0.7)
    assert row["new_accuracy_std"] == pytest.approx(np.std([0.6, 0.8], ddof=1))
    assert row["new_worst"] == pytest.approx(0.6)
    assert row["new_beats_local"] == pytest.approx(0.75)
    assert np.isnan(compared.table.loc["local", "new_beats_local"])
    sentence = "New clients: kt-pfl is not shown to differ from local: +15.0 points."
    assert any(verdict.startswith(sentence) for verdict in compared.verdicts)
    assert not [note for note in compared.notes if "lack an evaluation" in note]
    assert "new clients" in compared.to_markdown() and "70.0 ± 14.1%" in compared.to_markdown()


def test_compare_rejects_runs_with_and_without_new_clients(tmp_path):
    write_run(tmp_path, "local", 0, [0.4, 0.4])
    assert not [name for name in compare(tmp_path).table if name.startswith("new_")]
    write_run(tmp_path, "kt-pfl", 0, [0.4, 0.4], **{"new-clients": 0.5})
    with pytest.raises(IncomparableRunsError, match=r"new-clients \(0.0, 0.5\)"):
        compare(tmp_path)
