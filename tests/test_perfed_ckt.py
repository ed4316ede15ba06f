"""PerFed-CKT (Cho et al. 2021): clusters, centroids, sampling, and Table 1's communication."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import witnessed
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from helpers import client_of, random_simplex, run_with, watched

import fedkd_flwr
from fedkd_flwr.clients.perfed_ckt import PerFedCKTClient, nearest_centroid
from fedkd_flwr.clients.session import Session
from fedkd_flwr.config.toml_files import read_toml
from fedkd_flwr.training.losses import CoDistillation
from strategies.core.plan import RunPlan
from strategies.core.replies import ClientInfo
from strategies.perfed_ckt import PerFedCKT, PerFedCKTSettings, centroids_of, k_means

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
    centroids, labels = centroids_of(predictions, k_means(predictions, 3, seed=1))
    assert centroids.shape == (3, 30, 10)
    for i, j in itertools.combinations(range(7), 2):
        assert (labels[i] == labels[j]) == (groups[i] == groups[j])
    for cluster in range(3):
        mean = predictions[labels == cluster].mean(axis=0)
        np.testing.assert_allclose(centroids[cluster], mean, atol=1e-6)
    np.testing.assert_allclose(centroids.sum(axis=2), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("replies", "clusters", "labels"),
    [(5, 1, [0] * 5), (2, 4, [0, 1]), (1, 3, [0])],
    ids=["the plain mean", "fewer replies than clusters", "one reply"],
)
def test_centroids_are_means_of_as_many_groups_as_there_can_be(replies, clusters, labels):
    predictions = random_predictions(np.random.default_rng(0), replies, 20, 10)
    centroids, found = centroids_of(predictions, k_means(predictions, clusters, seed=0))
    assert sorted(found) == labels
    for n, label in enumerate(found):
        mean = predictions.mean(axis=0) if clusters == 1 else predictions[n]
        np.testing.assert_allclose(centroids[label], mean, atol=1e-6)
    alike = np.stack([predictions[0]] * 5)
    centroids, found = centroids_of(alike, k_means(alike, clusters, seed=0))
    assert (len(centroids), found.tolist()) == (1, [0] * 5)


class ByParity(PerFedCKT):
    def cluster(self, predictions, k):
        return np.arange(len(predictions)) % k + 7


def test_clusters_are_those_of_the_hook(small, tmp_path):
    changes = {"strategy": (ByParity, PerFedCKTClient), "perfed-ckt.clusters": 2}
    changes |= {"num-server-rounds": 1}
    run = fedkd_flwr.run({**small, **changes}, output_dir=tmp_path / "run")
    assert run.matrices["clusters"].tolist() == [[0, 1, 0, 1]]


# ---- Client --------------------------------------------------------------------------


def test_nearest_is_by_squared_distance_over_all_samples():
    predictions = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    near_on_one_sample = torch.tensor([[1.0, 0.0], [1.0, 0.0]])  # distance 2
    near_on_both = torch.tensor([[0.7, 0.3], [0.3, 0.7]])  # distance 0.36
    far = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # distance 4
    centroids = torch.stack([near_on_one_sample, far, near_on_both])
    assert nearest_centroid(centroids, predictions) == 2
    assert nearest_centroid(centroids[:2], predictions) == 0


def test_a_clients_own_weight_is_lambda_over_its_squared_distance(small):
    """Theorem 4.2: sigma² / (nu v_k²), from plain loops over the client's own predictions."""
    changes = {"perfed-ckt.weight-by-distance": True, "perfed-ckt.regularization-weight": 0.5}
    client = client_of(small, **changes)
    predictions = client.soft_predictions(client.session.public_images(0), temperature=1.0).numpy()
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
    images = client.session.public_images(0)
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


# ---- Whole runs ----------------------------------------------------------------------


def test_the_first_round_has_no_centroid_and_later_ones_send_all_to_everybody(small, tmp_path):
    changes = {"num-server-rounds": 3, "perfed-ckt.clusters": 2}
    witness, _ = witnessed(small, tmp_path / "run", **changes)
    by_round = {t: [witness.down[t, "train", n] for n in range(4)] for t in (1, 2, 3)}
    assert by_round[1] == [{}] * 4
    for t in (2, 3):
        sent = [arrays["centroids"] for arrays in by_round[t]]
        assert sent[0].shape == (2, 40, 10)
        assert all(np.array_equal(sent[0], other) for other in sent)
    assert not np.array_equal(by_round[2][0]["centroids"], by_round[3][0]["centroids"])
    for (t, phase, _), metrics in witness.metrics.items():
        assert ("cluster" in metrics) == (phase == "train" and t > 1)


def test_the_public_subset_is_one_for_all_rounds_and_clients(small, tmp_path, monkeypatch):
    calls = watched(monkeypatch, Session, "public_images")
    changes = {"num-server-rounds": 3, "perfed-ckt.clusters": 2, "held-out-size": 200}
    witnessed(small, tmp_path / "run", **changes)
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
        counts = {"own-test-correct": 1, "own-test-total": 2}
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


VGG11 = 9_756_426
HYPCLUSTER = {2: (2340, 3320), 3: (2540, 3510), 5: (2930, 3900), 6: (3120, 4100)}


@pytest.mark.parametrize(
    ("strategy", "changes", "published"),
    [
        ("fedavg", {}, (2150, 3120)),
        ("fedfomo", {"fedfomo.models-sent": 14}, (3900, 5850)),
        *(("hypcluster", {"hypcluster.clusters": c}, HYPCLUSTER[c]) for c in HYPCLUSTER),
    ],
)
def test_communication_of_its_rivals_in_table_1(strategy, changes, published, small, tmp_path):
    """A round, counted in models, is 200 rounds of VGG11 in units of 10⁷."""
    flat = {**small, **changes, "strategy": strategy, "local-iterations": 1, "evaluate-every": 2}
    for number, expected in zip((10, 15), published, strict=True):
        run = fedkd_flwr.run({**flat, "num-clients": number}, output_dir=tmp_path / str(number))
        second = run.rounds.iloc[1]
        models = (second["numbers_up"] + second["numbers_down_broadcast"]) / 79_510
        assert models == pytest.approx(round(models), abs=0.01)
        assert float(f"{200 * round(models) * VGG11:.2e}") == expected * 10**7
