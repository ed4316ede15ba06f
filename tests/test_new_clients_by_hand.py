"""Personalization of new clients by each family of methods, computed by hand."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import logits, training_data
from helpers import Witness, client_of, random_simplex, reply_with, run_with
from test_new_clients import new_clients_of, settings_for
from torch.nn import functional

from fedkd_flwr.runs import read_checkpoint
from strategies.core.client_info import ClientInfo
from strategies.core.plan import RunPlan
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
    (new,) = new_clients_of(flat)
    witness = Witness()
    run, _ = run_with(witness, flat, tmp_path / "run")
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
    (new,) = new_clients_of(flat)
    witness = Witness()
    run_with(witness, flat, tmp_path / "run")
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
    (new,) = new_clients_of(flat)
    witness = Witness()
    run, _ = run_with(witness, flat, tmp_path / "run")
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
    (new,) = new_clients_of(flat)
    witness = Witness()
    run, _ = run_with(witness, flat, tmp_path / "run")
    model = read_checkpoint(run.path).state["model/weights"]
    np.testing.assert_array_equal(witness.down[2, "evaluate", new]["weights"], model)
    (row,) = run.table("new_clients").to_dict("records")
    assert row["fine_tuning_steps"] > 0
    assert row["numbers_down"] == run.round_rows[-1]["new_numbers_down"] == len(model)


# ---- Class means -----------------------------------------------------------------------


def test_fedproto_regularizes_towards_the_last_prototypes(small, tmp_path):
    flat = settings_for("fedproto", small)
    (new,) = new_clients_of(flat)
    witness = Witness()
    run, _ = run_with(witness, flat, tmp_path / "run")
    prototypes = read_checkpoint(run.path).state["prototypes/prototypes"]
    for key in ((1, "train", new), (2, "train", new), (2, "evaluate", new)):
        np.testing.assert_array_equal(witness.down[key]["prototypes"], prototypes)
