"""New clients: kept out of the training, personalized after it, reported separately."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import logits, training_data
from helpers import (
    Witness,
    breaking,
    client_of,
    most_of_them_slow,
    raising,
    random_simplex,
    replacing,
    reply_with,
    run_with,
    write_lines,
)
from test_comparison import write_run
from torch.nn import functional

import fedkd_flwr
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.engines import InProcessGrid, resolve_output
from fedkd_flwr.methods import METHODS
from fedkd_flwr.runs import read_checkpoint
from fedkd_flwr.server_app import serve
from strategies.base import PersonalizedStrategy
from strategies.core.method_record import Need
from strategies.core.plan import RunPlan
from strategies.core.replies import ClientInfo
from strategies.core.rounds import NEW_CLIENTS
from strategies.core.state import named_arrays
from strategies.fedamp import FedAMP, FedAMPSettings
from strategies.fedfomo import GAINS_OF_OTHERS, FedFomo, FedFomoSettings
from strategies.fedkma import sharing_row
from strategies.fedmd import FedMD
from strategies.fesem import FeSEM, FeSEMSettings
from strategies.kt_pfl import KTpFL
from strategies.kt_pfl_params import KTpFLParams, KTpFLParamsSettings
from strategies.pfedhn import PFedHN, PFedHNSettings, generated_weights
from strategies.sim_pfl import TopKPFL

SAME = ["round", "partition_id", "accuracy", "loss", "numbers_up", "numbers_down"]


def settings_for(strategy, small, **changes):
    one_model = Need.ONE_ARCHITECTURE in METHODS[strategy].record.needs
    models = "mlp" if one_model else "mlp,lenet"
    own = {"strategy": strategy, "models": models, "max-samples": 240, "new-clients": 0.25}
    return {**small, **own, "fedtgp.server-epochs": 1, **changes}


def new_clients_of(flat):
    return read_config(flat).run.server_plan().new_client_ids


def witnessed(flat, folder):
    """Return a run, what was sent and received in it, and its one new client."""
    witness = Witness()
    (new,) = new_clients_of(flat)
    run, _ = run_with(witness, flat, folder / "run")
    return run, witness, new


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


def test_privacy_loss_of_new_clients_is_counted(small, tmp_path):
    noise = {"soft-predictions.clip-norm": 1.0, "soft-predictions.noise-multiplier": 1.0}
    noise |= {"new-client-rounds": 5}
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
    write_lines(path / f"{NEW_CLIENTS}.jsonl", rows)


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


# ---- Personalization by hand ---------------------------------------------------------


PLAN = RunPlan(num_clients=5, new_clients=0.4, num_classes=3, public_size=4, num_server_rounds=1)
FIRST, SECOND = PLAN.new_client_ids
TRAINED = sorted({*range(5)} - {FIRST, SECOND})


def server(kind, settings, **initial):
    """Return a strategy with five clients of 10 to 50 samples."""
    strategy = kind(PLAN, settings)
    strategy.state = strategy.begin(
        {name: np.array(array, dtype=np.float32) for name, array in initial.items()}
    )
    strategy.members.clients = {n: ClientInfo(n, n, "mlp", 10 * (n + 1)) for n in range(5)}
    return strategy


def weights(values):
    return reply_with({"weights": np.array(values, dtype=np.float32)})


# ---- Soft predictions ------------------------------------------------------------------


@pytest.fixture
def predictions():
    drawn = random_simplex(np.random.default_rng(0), 5, 4, 3).astype(np.float32)
    return {n: reply_with({"predictions": drawn[n]}) for n in range(5)}


def taught(kind, predictions, **settings):
    """Return a server after its last round."""
    strategy = server(kind, kind.record.settings_type(**settings))
    strategy.state = strategy.aggregate(1, {n: predictions[n] for n in TRAINED})
    return strategy.for_new_clients()


def stacked(predictions, *clients):
    return np.stack([predictions[n].arrays["predictions"] for n in clients])


def test_fedmd_teaches_the_mean_of_trained_clients(predictions):
    strategy = taught(FedMD, predictions)
    # As in training, it has no teacher before its first training.
    assert strategy.train_payload(1, FIRST).keys() == {"asked"}
    strategy.state = strategy.with_new_clients(1, {FIRST: predictions[FIRST]})
    mean = stacked(predictions, *TRAINED).mean(axis=0)
    for n in (FIRST, SECOND):
        np.testing.assert_allclose(strategy.train_payload(2, n)["teacher"], mean, rtol=1e-6)
    # New clients are not asked for predictions that change nothing.
    assert strategy.expected_arrays(1, FIRST) == {}


def test_kt_pfl_updates_its_row_by_eq_7(predictions):
    strategy = taught(KTpFL, predictions, coefficient_learning_rate=0.05, coefficient_batch_size=2)
    before = strategy.state.coefficients.whole()
    np.testing.assert_allclose(before[np.ix_(TRAINED, TRAINED)].sum(axis=1), 1)
    np.testing.assert_array_equal(before[TRAINED][:, [FIRST, SECOND]], 0)
    teachers = [strategy.teacher_of(n) for n in TRAINED]
    givers = np.concatenate([teachers, stacked(predictions, FIRST)])
    strategy.state = strategy.with_new_clients(
        1, {FIRST: predictions[FIRST], SECOND: predictions[SECOND]}
    )
    row = torch.full((4,), 0.25, dtype=torch.float64, requires_grad=True)
    teacher = torch.tensordot(row, torch.tensor(givers).double(), dims=1)
    own = torch.tensor(givers[-1]).double()
    share = 10 * (FIRST + 1) / sum(10 * (n + 1) for n in (*TRAINED, FIRST))
    # A batch has half of the samples, and the regularization is 0 if all weights are 1/4.
    (share * 0.5 * (teacher * (teacher.log() - own.log())).sum()).backward()
    step = 0.05 * row.grad
    moved = (row.detach() - step + step.mean()).numpy()
    assert moved.min() > 0
    members = [*TRAINED, FIRST]
    after = strategy.state.coefficients.whole()
    np.testing.assert_allclose(after[FIRST, members], moved, rtol=1e-5)
    mixed = np.tensordot(moved, givers, axes=1)
    np.testing.assert_allclose(strategy.teacher_of(FIRST), mixed, rtol=1e-5)
    assert after[FIRST, SECOND] == 0
    np.testing.assert_array_equal(after[TRAINED], before[TRAINED])


def test_topk_pfl_uses_the_teacher_of_the_most_similar_client(predictions):
    strategy = taught(TopKPFL, predictions, top_k=1)
    teacher = strategy.teacher_of(TRAINED[1]).copy()
    nearly = teacher * 0.999 + 0.001 / 3
    strategy.state = strategy.with_new_clients(
        1, {FIRST: reply_with({"predictions": nearly.astype(np.float32)})}
    )
    np.testing.assert_allclose(strategy.teacher_of(FIRST), teacher, rtol=1e-6)


@pytest.mark.parametrize(
    ("strategy", "teachers"),
    [("perfed-ckt", "centroids"), ("ds-fl", "teacher"), ("fedmd", "teacher")],
)
def test_common_teachers_are_sent_and_no_predictions_requested(strategy, teachers, small, tmp_path):
    flat = settings_for(strategy, small)
    run, witness, new = witnessed(flat, tmp_path)
    state = read_checkpoint(run.path).state
    assert teachers not in witness.down[1, "train", new]
    np.testing.assert_array_equal(witness.down[2, "train", new][teachers], state["teachers"])
    assert witness.up[1, "train", new] == witness.up[2, "train", new] == {}
    assert state["releases"][new] == 0


# ---- Parameters ------------------------------------------------------------------------


def test_kt_pfl_params_mixes_last_models_with_its_own():
    settings = KTpFLParamsSettings(coefficient_learning_rate=0.0)
    strategy = server(KTpFLParams, settings, weights=[0, 0])
    models = {n: [float(n), 1.0] for n in range(5)}
    strategy.state = strategy.aggregate(1, {n: weights(models[n]) for n in TRAINED})
    mean = np.mean([models[n] for n in TRAINED], axis=0)
    np.testing.assert_allclose(strategy.model_for(FIRST)["weights"], mean)
    for _ in range(2):
        strategy.state = strategy.with_new_clients(
            1, {n: weights([100.0 * n, 9.0]) for n in (FIRST, SECOND)}
        )
        for n in (FIRST, SECOND):
            mixed = np.mean([*(models[m] for m in TRAINED), [100.0 * n, 9.0]], axis=0)
            np.testing.assert_allclose(strategy.model_for(n)["weights"], mixed, rtol=1e-6)


def test_fedamp_uses_only_the_last_models():
    settings = FedAMPSettings(attention_step=0.1, sigma=2.0)
    strategy = server(FedAMP, settings, weights=[0, 0])
    models = {n: np.array([n / 4, 0.5]) for n in range(5)}
    strategy.state = strategy.aggregate(1, {n: weights(models[n]) for n in TRAINED})
    for _ in range(2):
        strategy.state = strategy.with_new_clients(
            1, {n: weights(models[n]) for n in (FIRST, SECOND)}
        )
    for n in (FIRST, SECOND):
        pulls = {m: 0.1 * np.exp(-np.square(models[n] - models[m]).sum() / 2) / 2 for m in TRAINED}
        mixed = (1 - sum(pulls.values())) * models[n] + sum(pulls[m] * models[m] for m in TRAINED)
        np.testing.assert_allclose(strategy.model_for(n)["weights"], mixed, rtol=1e-5)


def test_fesem_sends_the_nearest_center():
    strategy = server(FeSEM, FeSEMSettings(clusters=2), weights=[0, 0])
    centers = {"weights": np.array([[0, 0], [4, 0]], dtype=np.float32)}
    strategy.state = replace(strategy.state, centers=centers)
    strategy.state = strategy.with_new_clients(
        1, {FIRST: weights([1.9, 5]), SECOND: weights([2.1, 5])}
    )
    assert strategy.model_for(FIRST)["weights"].tolist() == [0, 0]
    assert strategy.model_for(SECOND)["weights"].tolist() == [4, 0]


def test_fedfomo_sends_the_models_with_the_largest_weights():
    settings = FedFomoSettings(models_sent=2, exploration=0.0)
    strategy = server(FedFomo, settings, weights=[0, 0])
    library = {n: {"weights": np.full(2, n, dtype=np.float32)} for n in TRAINED}
    strategy.state = replace(strategy.state, library=library)
    sent = strategy.train_payload(1, FIRST)
    assert list(sent) == ["weights", "0/weights", "1/weights"]
    reply = reply_with({GAINS_OF_OTHERS: np.array([0.0, 1.0], dtype=np.float32)})
    strategy.state = strategy.with_new_clients(1, {FIRST: reply})
    best = strategy.train_payload(2, FIRST)
    assert list(best) == ["0/weights", "1/weights"]
    np.testing.assert_array_equal(best["0/weights"], sent["1/weights"])


def test_pfedhn_updates_only_the_embedding():
    settings = PFedHNSettings(hidden_size=5, hidden_layers=1, learning_rate=0.1, momentum=0.5)
    strategy = server(PFedHN, settings, weights=np.ones(7))
    generator = np.random.default_rng(0)
    network = strategy.state.network
    network.head[:] = generator.normal(size=(7, 5))
    before = copy.deepcopy(network)
    goal = generator.normal(size=7).astype(np.float32)
    embedding, velocity = before.embeddings[FIRST].copy(), 0.0
    for step in (1, 2):
        leaf = torch.tensor(embedding, requires_grad=True)
        hidden = leaf
        for layer in (0, 1):
            linear = torch.tensor(before.weights[layer]) @ hidden
            hidden = linear + torch.tensor(before.biases[layer])
            hidden = torch.relu(hidden) if layer == 0 else hidden
        made = torch.tensor(before.head) @ hidden + torch.tensor(before.head_bias)
        # The product with the change is the gradient of half the squared distance.
        (0.5 * (made - torch.tensor(goal)).square().sum()).backward()
        velocity = 0.5 * velocity + leaf.grad.numpy()
        embedding = embedding - 0.1 * velocity
        strategy.state = strategy.with_new_clients(step, {FIRST: weights(goal)})
        np.testing.assert_allclose(network.embeddings[FIRST], embedding, rtol=1e-4)
    np.testing.assert_allclose(
        strategy.model_for(FIRST)["weights"], generated_weights(network, FIRST)
    )
    np.testing.assert_array_equal(
        np.delete(network.embeddings, FIRST, axis=0), np.delete(before.embeddings, FIRST, axis=0)
    )
    parts, unchanged = named_arrays(network), named_arrays(before)
    for name in parts.keys() - {"embeddings"}:
        np.testing.assert_array_equal(parts[name], unchanged[name])


def test_fedkma_weights_clients_of_the_last_round_by_label_similarity(small, tmp_path):
    flat = settings_for("fedkma", small)
    _, witness, new = witnessed(flat, tmp_path)
    trained = sorted({*range(4)} - {new})
    _, labels = training_data(flat, new)
    distribution = np.bincount(labels, minlength=10) / len(labels)
    row = witness.up[1, "share-knowledge", new]["sharing"]
    expected = sharing_row(witness.down[1, "share-knowledge", new]["irrelevancy"], distribution)
    np.testing.assert_allclose(row, expected, rtol=1e-5)
    models = [witness.up[2, "train", n]["weights"] for n in trained]
    models.append(witness.up[1, "train", new]["weights"])
    mixed = sum(weight * model for weight, model in zip(row, models, strict=True))
    np.testing.assert_allclose(witness.down[2, "train", new]["weights"], mixed, atol=1e-6)


def test_hypcluster_uses_the_hypothesis_with_the_lowest_training_loss(small, tmp_path):
    flat = settings_for("hypcluster", small, **{"hypcluster.clusters": 2, "learning-rate": 0.3})
    run, witness, new = witnessed(flat, tmp_path)
    hypotheses = witness.down[2, "evaluate", new]["weights"]
    np.testing.assert_array_equal(hypotheses, read_checkpoint(run.path).state["centers/weights"])
    images, labels = training_data(flat, new)
    data = client_of(flat, new).data

    def loss(hypothesis, images, labels):
        return float(functional.cross_entropy(logits(torch.tensor(hypothesis), images), labels))

    best = min(hypotheses, key=lambda hypothesis: loss(hypothesis, images, labels))
    (row,) = run.table("new_clients").to_dict("records")
    assert row["loss"] == pytest.approx(
        loss(best, data.test_images.flatten(1), data.test_labels), rel=1e-5
    )


def test_fedavg_ft_fine_tunes_the_last_global_model(small, tmp_path):
    flat = settings_for("fedavg-ft", small)
    run, witness, new = witnessed(flat, tmp_path)
    model = read_checkpoint(run.path).state["model/weights"]
    np.testing.assert_array_equal(witness.down[2, "evaluate", new]["weights"], model)
    (row,) = run.table("new_clients").to_dict("records")
    assert row["fine_tuning_steps"] > 0
    assert row["numbers_down"] == run.round_rows[-1]["new_numbers_down"] == len(model)


# ---- Class means -----------------------------------------------------------------------


def test_fedproto_regularizes_towards_the_last_prototypes(small, tmp_path):
    flat = settings_for("fedproto", small)
    run, witness, new = witnessed(flat, tmp_path)
    prototypes = read_checkpoint(run.path).state["prototypes/prototypes"]
    for key in ((1, "train", new), (2, "train", new), (2, "evaluate", new)):
        np.testing.assert_array_equal(witness.down[key]["prototypes"], prototypes)
