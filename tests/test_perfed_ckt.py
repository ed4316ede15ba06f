"""PerFed-CKT (Cho et al. 2021): clusters, centroids, sampling, and Table 1's communication."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from helpers import Witness, client_of, first_job, random_simplex, run_with, watched
from torch.nn import functional

import fedkd_flwr
from fedkd_flwr.clients.perfed_ckt import PerFedCKTClient, nearest_centroid
from fedkd_flwr.config import read_config
from fedkd_flwr.config.toml_files import read_toml
from fedkd_flwr.server_app import initial_model
from fedkd_flwr.training.losses import CoDistillation
from strategies.core.client_info import ClientInfo
from strategies.core.plan import RunPlan
from strategies.core.traffic import Traffic
from strategies.perfed_ckt import PerFedCKT, PerFedCKTSettings, cluster_predictions

TABLE_1 = Path(__file__).parent.parent / "conf" / "perfed-ckt" / "cifar10-vgg11.toml"


@pytest.fixture
def small(small):
    return {**small, "strategy": "perfed-ckt", "models": "mlp"}


def random_predictions(generator, *shape):
    return random_simplex(generator, *shape).astype(np.float32)


# ---- Clusters ------------------------------------------------------------------------


def test_separated_groups_are_found_and_centroids_are_their_means():
    generator = np.random.default_rng(0)
    groups = np.array([0, 1, 2, 0, 1, 2, 0])
    shared = random_predictions(generator, 3, 30, 10)
    predictions = 0.95 * shared[groups] + 0.05 * random_predictions(generator, 7, 30, 10)
    centroids, labels = cluster_predictions(predictions, 3, seed=1)
    assert centroids.shape == (3, 30, 10)
    for i, j in itertools.combinations(range(7), 2):
        assert (labels[i] == labels[j]) == (groups[i] == groups[j])
    for cluster in range(3):
        mean = predictions[labels == cluster].mean(axis=0)
        np.testing.assert_allclose(centroids[cluster], mean, atol=1e-6)
    np.testing.assert_allclose(centroids.sum(axis=2), 1, atol=1e-5)


def test_one_cluster_is_the_plain_mean():
    predictions = random_predictions(np.random.default_rng(0), 5, 20, 10)
    centroids, labels = cluster_predictions(predictions, 1, seed=0)
    np.testing.assert_allclose(centroids[0], predictions.mean(axis=0), atol=1e-6)
    assert labels.tolist() == [0] * 5


@pytest.mark.parametrize(("replies", "clusters"), [(2, 4), (1, 3)])
def test_fewer_replies_than_clusters_are_their_own_centroids(replies, clusters):
    predictions = random_predictions(np.random.default_rng(0), replies, 20, 10)
    centroids, labels = cluster_predictions(predictions, clusters, seed=0)
    assert len(centroids) == replies
    np.testing.assert_allclose(centroids[labels], predictions, atol=1e-6)


def test_identical_predictions_make_one_cluster():
    one = random_predictions(np.random.default_rng(0), 20, 10)
    centroids, labels = cluster_predictions(np.stack([one] * 5), 3, seed=0)
    assert centroids.shape == (1, 20, 10)
    np.testing.assert_allclose(centroids[0], one, atol=1e-6)
    assert labels.tolist() == [0] * 5


# ---- Client --------------------------------------------------------------------------


def test_nearest_is_by_squared_distance_over_all_samples():
    predictions = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    near_on_one_sample = torch.tensor([[1.0, 0.0], [1.0, 0.0]])  # distance 2
    near_on_both = torch.tensor([[0.7, 0.3], [0.3, 0.7]])  # distance 0.36
    far = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # distance 4
    centroids = torch.stack([near_on_one_sample, far, near_on_both])
    assert nearest_centroid(centroids, predictions) == 2
    assert nearest_centroid(centroids[:2], predictions) == 0


@pytest.mark.parametrize("own", [0, 1, 2])
def test_a_client_learns_from_the_centroid_nearest_to_its_predictions(own, small, monkeypatch):
    calls = watched(monkeypatch, PerFedCKTClient, "co_distill")
    client = client_of(small)
    predictions = client.soft_predictions(client.public_images(0), temperature=1.0).numpy()
    centroids = random_predictions(np.random.default_rng(0), 3, *predictions.shape)
    centroids[own] = 0.9 * predictions + 0.1 * centroids[own]
    reply = client.train({"centroids": centroids}, server_round=2, phase="train")
    assert reply.metrics["cluster"] == own
    assert reply.arrays.keys() == {"predictions"}
    ((arguments, _),) = calls
    np.testing.assert_array_equal(arguments[1], centroids[own])


def test_the_loss_equals_a_hand_computation(small):
    """Eq. 1 in float64 with plain loops, on a public batch of all samples."""
    client = client_of(small)
    images = client.public_images(0)
    centroid = torch.from_numpy(random_predictions(np.random.default_rng(2), 40, 10))
    positions = torch.tensor([3, 5, 8])
    private = client.data.train_images[positions], client.data.train_labels[positions]
    loss = CoDistillation(weight=2.0)(client.model, *private, images, centroid)

    def softmax(row):
        exponentials = np.exp(row - row.max())
        return exponentials / exponentials.sum()

    with torch.no_grad():
        private = client.model(client.data.train_images[positions]).double().numpy()
        public = client.model(images).double().numpy()
    labels = client.data.train_labels[positions].numpy()
    hard = -np.mean([np.log(softmax(row)[k]) for row, k in zip(private, labels, strict=True)])
    pull = 0.0
    for row, target in zip(public, centroid.numpy(), strict=True):
        pull += sum((target[k] - softmax(row)[k]) ** 2 for k in range(10))
    assert float(loss.detach()) == pytest.approx(hard + 2.0 * pull / 40, rel=1e-5)


def test_a_clients_own_weight_is_lambda_over_its_squared_distance(small):
    """Theorem 4.2: sigma² / (nu v_k²), from plain loops over the client's own predictions."""
    changes = {"perfed-ckt.weight-by-distance": True, "perfed-ckt.regularization-weight": 0.5}
    client = client_of(small, **changes)
    predictions = client.soft_predictions(client.public_images(0), temperature=1.0).numpy()
    centroids = random_predictions(np.random.default_rng(0), 1, *predictions.shape)
    rows = zip(predictions.tolist(), centroids[0].tolist(), strict=True)
    distance = np.mean([sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) for pair in rows])
    reply = client.train({"centroids": centroids}, server_round=2, phase="train")
    assert reply.metrics["weight"] == pytest.approx(0.5 / distance, rel=1e-4)
    alike = {"centroids": predictions[None]}
    fresh = client_of(small, **changes).train(alike, server_round=2, phase="train")
    assert fresh.metrics["weight"] == pytest.approx(0.5 / 0.01)


def test_factors_in_the_batch_multiply_the_weight(small):
    client = client_of(small)
    images = client.public_images(0)
    centroid = torch.from_numpy(random_predictions(np.random.default_rng(2), 40, 10))
    batch = client.data.train_images[:3], client.data.train_labels[:3], images, centroid
    expected = CoDistillation(weight=3.0)(client.model, *batch)
    found = CoDistillation(weight=2.0)(client.model, *batch, torch.full((40,), 1.5))
    torch.testing.assert_close(found, expected)


def test_own_weights_differ_between_clients_trained_side_by_side(small, tmp_path):
    """A cohort, and clients one by one, have the same weights and accuracies."""
    changes = {**small, "perfed-ckt.weight-by-distance": True, "num-server-rounds": 2}
    changes |= {"perfed-ckt.regularization-weight": 0.1, "perfed-ckt.clusters": 1}
    changes |= {"local-iterations": 20}
    together, alone = (
        fedkd_flwr.run({**changes, "cohort": cohort}, output_dir=tmp_path / cohort).clients
        for cohort in ("on", "off")
    )
    weights = together.loc[together["round"] == 2, "weight"]
    assert weights.nunique() == 4
    np.testing.assert_allclose(weights, alone.loc[alone["round"] == 2, "weight"], rtol=1e-3)


def test_public_batches_are_drawn_anew_in_each_iteration(small):
    """The public part of a batch changes from step to step, whatever the private one does."""
    changes = {"perfed-ckt.public-batch-size": 10, "local-iterations": 4}
    client = client_of(small, **changes)
    images, centroid = client.public_images(0), torch.full((40, 10), 0.1)
    job = first_job(client.co_distill, images, centroid, 2)
    publics = [public for _, _, public, *_ in job.batches]
    assert len(publics) == 4
    assert len({public.numpy().tobytes() for public in publics}) == 4
    known = {image.numpy().tobytes() for image in images}
    assert all(image.numpy().tobytes() in known for public in publics for image in public)


def test_without_centroids_a_client_trains_on_its_own_data_alone(small):
    client = client_of(small, **{"local-iterations": 1, "batch-size": 1000, "momentum": 0.0})
    expected = client_of(small).model
    data = client.data
    functional.cross_entropy(expected(data.train_images), data.train_labels).backward()
    reply = client.train({}, server_round=1, phase="train")
    assert "cluster" not in reply.metrics
    for trained, fresh in zip(client.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(trained, fresh - 0.05 * fresh.grad, rtol=1e-4, atol=1e-6)


# ---- Sampling ------------------------------------------------------------------------


def strategy_with(sizes, sampled):
    plan = RunPlan(
        num_clients=len(sizes), num_classes=10, public_size=4, fraction_train=sampled / len(sizes)
    )
    strategy = PerFedCKT(plan, PerFedCKTSettings(clusters=1))
    strategy.members.clients = {
        n: ClientInfo(n, 1000 + n, "mlp", size) for n, size in enumerate(sizes)
    }
    return strategy


def test_clients_are_sampled_by_their_share_of_the_data():
    sizes, draws = np.array([10, 20, 30, 40, 100]), 4000
    strategy = strategy_with(sizes, sampled=1)
    chosen = [strategy.sample(t, range(5))[0] for t in range(draws)]
    share = sizes / sizes.sum()
    deviation = np.bincount(chosen, minlength=5) - draws * share
    assert (np.abs(deviation) < 4 * np.sqrt(draws * share * (1 - share))).all()


def test_two_clients_are_sampled_without_replacement():
    """The first is drawn by its share, the second by its share of what is left."""
    sizes, draws = np.array([10, 20, 30, 40, 100]), 4000
    strategy = strategy_with(sizes, sampled=2)
    samples = [strategy.sample(t, range(5)) for t in range(draws)]
    assert all(len(set(sample)) == 2 and sample == sorted(sample) for sample in samples)
    p = sizes / sizes.sum()
    included = p + np.array([sum(p[j] * p[n] / (1 - p[j]) for j in range(5) if j != n)
                             for n in range(5)])  # fmt: skip
    assert included.sum() == pytest.approx(2)
    deviation = np.bincount(np.concatenate(samples), minlength=5) - draws * included
    assert (np.abs(deviation) < 4 * np.sqrt(draws * included * (1 - included))).all()


def test_only_clients_that_can_be_reached_are_sampled():
    strategy = strategy_with([10, 20, 30, 40, 100], sampled=2)
    assert all(set(strategy.sample(t, [0, 2, 3])) <= {0, 2, 3} for t in range(50))
    assert strategy.sample(1, [3]) == [3]


# ---- Whole runs ----------------------------------------------------------------------


def witnessed_run(small, tmp_path, **changes):
    witness = Witness()
    finished, _ = run_with(witness, small, tmp_path / "r", **{"perfed-ckt.clusters": 2}, **changes)
    return finished, witness


def test_the_first_round_has_no_centroid_and_later_ones_send_all_to_everybody(small, tmp_path):
    _, witness = witnessed_run(small, tmp_path, **{"num-server-rounds": 3})
    by_round = {t: [witness.down[t, "train", n] for n in range(4)] for t in (1, 2, 3)}
    assert by_round[1] == [{}] * 4
    for t in (2, 3):
        sent = [arrays["centroids"] for arrays in by_round[t]]
        assert sent[0].shape == (2, 40, 10)
        assert all(np.array_equal(sent[0], other) for other in sent)
    assert not np.array_equal(by_round[2][0]["centroids"], by_round[3][0]["centroids"])
    for (t, phase, _), metrics in witness.metrics.items():
        assert ("cluster" in metrics) == (phase == "train" and t > 1)


def test_clusters_in_the_run_directory_are_those_of_the_replies(small, tmp_path):
    finished, witness = witnessed_run(small, tmp_path, **{"fraction-train": 0.5})
    clusters = finished.matrices["clusters"]
    assert clusters.shape == (2, 4)
    for t in (1, 2):
        assert np.flatnonzero(clusters[t - 1] >= 0).tolist() == witness.trained(t)


def test_the_public_subset_is_one_for_all_rounds_and_clients(small, tmp_path, monkeypatch):
    calls = watched(monkeypatch, PerFedCKTClient, "public_images")
    witnessed_run(small, tmp_path, **{"num-server-rounds": 3, "held-out-size": 200})
    assert len(calls) == 12
    (_, first), *_ = calls
    assert all(torch.equal(images, first) for _, images in calls)


# ---- Communication, Table 1 ----------------------------------------------------------


def scripted_app(public_size, classes):
    one_hot = np.eye(classes, dtype=np.float32)
    answers = [Array(np.tile(row, (public_size, 1))) for row in one_hot]

    def app(message, context):
        n = context.node_config["partition-id"]
        info = ConfigRecord({"partition-id": n, "model": "vgg11"})
        sizes = {"num-examples": 1 + n, "test-size": 2, "validation-size": 0}
        counts = {"correct": 1, "total": 2}
        metrics = MetricRecord(sizes if message.metadata.message_type == "query" else counts)
        arrays = {"predictions": answers[n % classes]}
        is_train = message.metadata.message_type == "train"
        content = RecordDict({"info": info, "metrics": metrics,
                              "arrays": ArrayRecord(arrays if is_train else {})})  # fmt: skip
        return Message(content, reply_to=message)

    return app


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fraction", "clusters", "numbers"),
    [(0.10, 1, 4.4e7), (0.10, 2, 4.8e7), (0.10, 3, 5.2e7), (0.10, 4, 5.6e7),
     (0.15, 1, 6.4e7), (0.15, 2, 6.8e7), (0.15, 3, 7.2e7), (0.15, 4, 7.6e7)],
)  # fmt: skip
def test_communication_of_table_1(fraction, clusters, numbers, tmp_path):
    """The run's own accounting. Only the first round differs: it has no centroids to send."""
    changes = {"fraction-train": fraction, "perfed-ckt.clusters": clusters, "device": "cpu"}
    changes |= {"num-server-rounds": 3, "evaluate-every": 3}
    app = scripted_app(2000, 10)
    finished, _ = run_with(app, read_toml(TABLE_1), tmp_path / "run", **changes)
    rounds = finished.rounds
    assert (rounds["failures"] == 0).all()
    first, second, third = rounds["numbers_up"] + rounds["numbers_down_broadcast"]
    assert second == third
    assert float(f"{first + 199 * second:.1e}") == numbers


def test_fedavg_on_the_same_preset_costs_five_hundred_times_as_much():
    """One round of ten clients, times 200: 2150e7 in Table 1."""
    flat = {**read_toml(TABLE_1), "strategy": "fedavg", "device": "cpu"}
    vectors = initial_model(read_config(flat))
    model = {kind: Array(vector) for kind, vector in vectors.items()}
    traffic = Traffic()
    for n in range(10):
        traffic.count_down(n, model)
        traffic.count_up(n, model)
    counted = 200 * (traffic.numbers_up + traffic.numbers_down_broadcast)
    assert float(f"{counted:.2e}") == 2.15e10


def test_the_mixed_preset_lets_clients_differ_and_sends_as_little():
    mixed = read_config(read_toml(TABLE_1.with_name("cifar10-mixed.toml")))
    same = read_config(read_toml(TABLE_1))
    assert mixed.run.models.models == ("vgg13", "vgg11", "cnn-ckt")
    assert mixed.run.models.model_assignment == "by-size"
    unlike = {name for name, value in mixed.flat().items() if value != same.flat()[name]}
    assert unlike == {"models", "model-assignment"}
