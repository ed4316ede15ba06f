"""FedKMA: mathematics against plain loops, the search's two parts, messages and failures."""

import operator
from itertools import cycle

import numpy as np
import pytest
import torch
from helpers import (
    SMALLEST_SUPERNET,
    SUPERNET_OPERATIONS,
    Witness,
    breaking,
    client_of,
    first_job,
    raising,
    replacing,
    reply_with,
    run_with,
)
from torch import nn

import fedkd_flwr
from fedkd_flwr import plots
from fedkd_flwr.analysis.client_models import client_genotypes
from fedkd_flwr.clients.prototypes import class_means
from fedkd_flwr.clients.supernets import split_parameters
from fedkd_flwr.config import read_config
from fedkd_flwr.models.vectors import fill_from_vectors
from fedkd_flwr.runs import RunDirectoryError
from fedkd_flwr.server_app import initial_model
from fedkd_flwr.training.loop import (
    SGD,
    Adam,
    DivergedError,
    predict_logits,
    refresh_statistics,
)
from strategies.core.plan import RunPlan
from strategies.core.replies import InvalidReplyError
from strategies.fedkma import (
    CLASS_FLAGS,
    CLASS_LOGITS,
    SHARE_KNOWLEDGE,
    FedKMA,
    FedKMASettings,
    irrelevancy,
    sharing_row,
    with_absent,
)


def smallest(small):
    return {
        **small,
        **SMALLEST_SUPERNET,
        "strategy": "fedkma",
        "public-dataset": "none",
        "max-samples": 150,
        "client-split": "75/0/25",
        "num-clients": 3,
        "classes-per-client": 4,
        "learning-rate": 0.02,
        "fedkma.alpha-share": 0.5,
    }


@pytest.fixture
def tiny(small):
    return smallest(small)


def first_client(flat, partition_id=0):
    """Build a client with the model of the first round."""
    client = client_of(flat, partition_id)
    client.receive_model(initial_model(read_config(flat)))
    return client


# ---- H, M and mixing -----------------------------------------------------------------------


def softmax(z):
    return np.exp(z - z.max()) / np.exp(z - z.max()).sum()


def irrelevancy_by_loops(logits, flags, weight):
    """Eq. 12 as METHODS reads it: pair by pair, class by class, one logarithm at a time."""
    clients, classes, _ = logits.shape
    expected = np.zeros((clients, clients, classes))
    for i in range(clients):
        for j in range(clients):
            for k in range(classes):
                uniform = np.full(classes, 1 / classes)
                q_i = softmax(logits[i, k]) if flags[i, k] else uniform
                q_j = softmax(logits[j, k]) if flags[j, k] else uniform
                divergence = sum(q_i[c] * np.log(q_i[c] / q_j[c]) for c in range(classes))
                expected[i, j, k] = weight * divergence + (1 - weight) * -np.log(q_j[k])
    return expected


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_h_and_m_equal_loops_with_absent_classes(seed, weight):
    rng = np.random.default_rng(seed)
    clients, classes = 5, 4
    logits = rng.normal(scale=3, size=(clients, classes, classes)).astype(np.float32)
    flags = (rng.random((clients, classes)) < 0.6).astype(np.float32)
    # What an absent class is filled with must not matter.
    logits[flags == 0] = 1e3
    flags[0], flags[1] = 1, 0
    h = irrelevancy(logits, flags, weight)
    np.testing.assert_allclose(h, irrelevancy_by_loops(logits, flags, weight), atol=1e-6)
    labels = rng.dirichlet(np.ones(classes))
    row = sharing_row(h[0], labels)
    distances = [sum(labels[k] * h[0, j, k] for k in range(classes)) for j in range(clients)]
    expected = np.array([np.exp(-d) for d in distances])
    np.testing.assert_allclose(row, expected / expected.sum(), rtol=1e-9)
    assert row.sum() == pytest.approx(1)


@pytest.mark.parametrize("absent", ["uniform", "excluded", "farthest"])
def test_absent_classes_count_as_the_setting_says(absent):
    """Pair by pair: giver 2 has one of the receiver's two classes, giver 3 none of them."""
    logits = np.random.default_rng(0).normal(scale=3, size=(4, 3, 3))
    flags = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 0, 1]])
    h, labels = irrelevancy(logits, flags, 0.5), np.array([0.3, 0.7, 0.0])
    distances = []
    for j in range(4):
        total, counted = 0.0, 0.0
        for k in (0, 1):
            if flags[j, k] or absent == "uniform":
                total, counted = total + labels[k] * h[0, j, k], counted + labels[k]
            elif absent == "farthest":
                total, counted = total + labels[k] * h[:, :, k].max(), counted + labels[k]
        distances.append(total / counted if counted else np.inf)
    expected = np.exp(-np.array(distances))
    row = sharing_row(with_absent(h, flags, absent)[0], labels)
    np.testing.assert_allclose(row, expected / expected.sum(), rtol=1e-9)


def test_lambda_one_is_the_sharpest_unless_absent_classes_count_as_uniform():
    """Fig. 8, two groups without common classes: their contrast is at most K if uniform."""
    flags = np.repeat([[1, 1, 0, 0], [0, 0, 1, 1]], 2, axis=0)
    logits = 8 * np.eye(4) + 0.3 * np.random.default_rng(0).normal(size=(4, 4, 4))
    labels, contrasts = np.array([0.5, 0.5, 0.0, 0.0]), {}
    for absent in ("uniform", "excluded", "farthest"):
        h = [with_absent(irrelevancy(logits, flags, w), flags, absent) for w in (0.1, 0.5, 1.0)]
        rows = [sharing_row(of_weight[0], labels) for of_weight in h]
        contrasts[absent] = [row[1] / max(row[2], 1e-9) for row in rows]
    assert contrasts["uniform"] == sorted(contrasts["uniform"], reverse=True)
    assert max(contrasts["uniform"]) < 4
    assert contrasts["farthest"] == sorted(contrasts["farthest"])
    assert contrasts["farthest"][-1] > 50 and min(contrasts["excluded"]) > 1e6


def test_a_case_by_hand():
    """Two clients of two classes; client 0 holds class 0 alone and is sure of it at 3:1."""
    logits = np.zeros((2, 2, 2))
    logits[0, 0] = [np.log(3), 0]
    flags = np.array([[1, 0], [0, 1]])
    h = irrelevancy(logits, flags, 0.5)
    assert h[0, 0, 0] == pytest.approx(0.5 * np.log(4 / 3))
    # KL((3/4, 1/4) || (1/2, 1/2)) and the uniform guess of a client without the class.
    divergence = 0.75 * np.log(1.5) + 0.25 * np.log(0.5)
    assert h[0, 1, 0] == pytest.approx(0.5 * divergence + 0.5 * np.log(2))


def test_sharpness_is_a_power_of_the_weights():
    distances = np.array([[0.1, 0.4], [0.5, 1.2], [2.0, 0.3]])
    labels = np.array([0.25, 0.75])
    paper = sharing_row(distances, labels)
    expected = paper**3 / (paper**3).sum()
    np.testing.assert_allclose(sharing_row(distances, labels, sharpness=3.0), expected)


@pytest.mark.parametrize(("name", "kind"), [("sgd", SGD), ("adam", Adam)])
def test_alpha_uses_the_configured_optimizer(tiny, name, kind):
    client = client_of({**tiny, "momentum": 0.7, "fedkma.alpha-optimizer": name})
    optimizer = client.alpha_optimizer(split_parameters(client.model)[0])
    assert isinstance(optimizer, kind)
    if name == "sgd":
        assert optimizer.param_groups[0]["momentum"] == 0.7


def test_as_printed_reverses_the_preference():
    rng = np.random.default_rng(0)
    h, labels = rng.random((6, 4)), rng.dirichlet(np.ones(4))
    meant, printed = sharing_row(h, labels), sharing_row(h, labels, as_printed=True)
    assert list(np.argsort(meant)) == list(np.argsort(printed)[::-1])
    np.testing.assert_allclose(printed / printed[0], meant[0] / meant, rtol=1e-9)
    assert printed.sum() == pytest.approx(1)


@pytest.mark.parametrize("as_printed", [False, True])
def test_rows_survive_distances_of_any_size(as_printed):
    row = sharing_row(np.array([[0.0, 1.0], [1e6, 1e6], [5e3, 0.0]]), np.ones(2) / 2, as_printed)
    assert np.isfinite(row).all()
    assert row.sum() == pytest.approx(1)


def test_class_means_equal_loops_and_count_absent_classes():
    torch.manual_seed(0)
    logits, labels = torch.randn(9, 4), torch.tensor([0, 0, 1, 3, 3, 3, 1, 0, 0])
    means, counts = class_means(logits, labels, 4)
    assert counts.tolist() == [4, 2, 0, 3]
    for k in (0, 1, 3):
        members = [z for z, label in zip(logits, labels, strict=True) if label == k]
        torch.testing.assert_close(means[k], sum(members) / len(members))


# ---- The search on a client ----------------------------------------------------------------


def test_the_alpha_half_never_enters_an_omega_step(tiny):
    """Images are told apart by their bytes."""
    seen = {"alpha": [], "omega": []}
    for server_round in (1, 2):
        client = first_client({**tiny, "local-epochs": 3})
        job = first_job(client.search, server_round)
        own = job.alternate.param_groups[0]["params"]
        assert all(map(operator.is_, own, split_parameters(client.model)[0]))
        for images, kind in zip([batch[0] for batch in job.batches], cycle(seen), strict=False):
            seen[kind].extend(image.numpy().tobytes() for image in images)
    omega, alpha = set(seen["omega"]), set(seen["alpha"])
    assert not omega & alpha
    training = {image.numpy().tobytes() for image in client.data.train_images}
    assert omega | alpha <= training
    # Each epoch goes through the whole omega half.
    assert len(omega) == client.data.num_train // 2
    assert len(seen["omega"]) == 2 * 3 * len(omega)
    assert len(alpha) > len(omega) // 2


def test_statistics_are_refreshed_for_the_final_weights(tiny):
    """After it, evaluation on the images agrees with a training-mode pass over them all."""
    client = first_client(tiny)
    client.search(1)
    images = client.data.train_images
    weights = [value.detach().clone() for value in client.model.parameters()]
    refresh_statistics(client.model, images)
    assert all(map(torch.equal, weights, client.model.parameters()))
    with torch.no_grad():
        in_training, evaluated = client.model(images), client.model.eval()(images)
    torch.testing.assert_close(in_training, evaluated, rtol=0.02, atol=0.02)
    momenta = {m.momentum for m in client.model.modules() if isinstance(m, nn.BatchNorm2d)}
    assert momenta == {0.1}


def test_a_reply_has_the_statistics_of_its_own_weights(tiny):
    client = first_client(tiny)
    reply = client.train(initial_model(read_config(tiny)), 1, "train")
    refresh_statistics(client.model, client.data.train_images)
    np.testing.assert_array_equal(reply.arrays["buffers"], client.model_arrays()["buffers"])


def test_fresh_statistics_are_those_of_a_network_that_drops_nothing_out():
    layers = [nn.Dropout(0.5), nn.BatchNorm2d(2)]
    images = torch.randn(50, 2, 3, 3) * 4 + 7
    model = nn.Sequential(*layers)
    refresh_statistics(model, images)
    statistics = layers[1].running_mean, layers[1].running_var
    expected = images.mean(dim=(0, 2, 3)), images.var(dim=(0, 2, 3))
    torch.testing.assert_close(statistics, expected)
    refresh_statistics(model, images[:1] + 100)
    torch.testing.assert_close(statistics, expected)
    assert not any(layer.training for layer in model.modules())


@pytest.mark.parametrize("strategy", ["fedkma", "fedavg", "local"])
def test_received_statistics_are_not_used_to_evaluate_a_supernet(tiny, strategy):
    """Every method is evaluated with fresh statistics, or a comparison would measure those."""
    mixed = initial_model(read_config(tiny))
    skewed = {**mixed, "buffers": mixed["buffers"] + 5}
    logits = []
    for received in (mixed, skewed):
        client = client_of(tiny, strategy=strategy)
        fill_from_vectors(client.model, received)
        names = [] if strategy == "local" else list(received)
        client.evaluate([received[k] for k in names], {"names": names, "server-round": 1})
        logits.append(predict_logits(client.model, client.data.test_images))
    torch.testing.assert_close(*logits)


@pytest.mark.parametrize(("statistics", "are_alike"), [("fresh", True), ("kept", False)])
def test_a_setting_selects_the_statistics_for_evaluation(small, statistics, are_alike):
    changes = {"strategy": "local", "models": "shufflenetv2", "batch-norm-statistics": statistics}
    losses = []
    for variance in (0.5, 1.0):
        client = client_of({**small, **changes})
        for name, buffer in client.model.named_buffers():
            if name.endswith("running_var"):
                buffer.fill_(variance)
        losses.append(client.evaluate([], {"names": [], "server-round": 1})[0])
    assert (losses[0] == pytest.approx(losses[1])) == are_alike


def test_a_search_whose_last_step_overflows_has_diverged(tiny):
    wild = {"learning-rate": 1e38, "weight-decay": 1e3, "local-iterations": 1}
    with pytest.raises(DivergedError, match="model is not finite"):
        first_client({**tiny, **wild}).search(1)


# ---- Whole rounds --------------------------------------------------------------------------


def test_nothing_that_a_client_sends_of_its_classes_is_parallel_to_their_shares(tiny, tmp_path):
    """Counts and shares are, however scaled."""
    # Shares that differ: equal ones could be read off the flags, which the method sends.
    flat = {**tiny, "partition": "dirichlet", "alpha": 0.5}
    witness = Witness()
    run_with(witness, flat, tmp_path / "run")
    for (_, _, n), arrays in witness.up.items():
        shares = client_of(flat, n).label_distribution()
        assert np.ptp(shares[shares > 0]) > 0.05
        for name in {CLASS_LOGITS, CLASS_FLAGS} & arrays.keys():
            for row in filter(np.any, np.atleast_2d(arrays[name])):
                cosine = row @ shares / np.linalg.norm(row) / np.linalg.norm(shares)
                assert cosine < 0.999, name


def test_the_uniform_variant_shares_evenly_and_asks_for_no_rows(tiny, tmp_path):
    witness = Witness()
    finished, _ = run_with(witness, {**tiny, "strategy": "fedkma-uniform"}, tmp_path / "run")
    np.testing.assert_allclose(finished.matrices["sharing"], 1 / 3)
    assert not any(phase == SHARE_KNOWLEDGE for _, phase, _ in witness.down)
    assert not {CLASS_LOGITS, CLASS_FLAGS} & witness.up[1, "train", 0].keys()
    for name, received in witness.down[2, "train", 1].items():
        trained = [witness.up[1, "train", n][name] for n in range(3)]
        np.testing.assert_allclose(received, np.mean(trained, axis=0), rtol=1e-4, atol=1e-6)
    # All receive one mixture, which counts once.
    down, once = finished.rounds["numbers_down"], finished.rounds["numbers_down_broadcast"]
    assert list(once) == list(down // 3)


def test_a_fixed_network_trains_on_all_samples_and_shares_knowledge(tiny, tmp_path):
    """Ablation 2: there is no alpha, so nothing is kept back for it."""
    changes = {"models": "darts-fixed"}
    client = first_client({**tiny, **changes})
    images = []
    client.model.register_forward_pre_hook(lambda _, inputs: images.extend(inputs[0]))
    client.search(1)
    assert len(images) == client.data.num_train
    finished = fedkd_flwr.run({**tiny, **changes}, output_dir=tmp_path / "run")
    assert set(finished.matrices) == {"sharing"}
    np.testing.assert_allclose(finished.matrices["sharing"].sum(axis=2), 1)
    assert not np.allclose(finished.matrices["sharing"], 1 / 3)
    with pytest.raises(RunDirectoryError, match="no architecture weights"):
        client_genotypes(finished)


# ---- Failures ------------------------------------------------------------------------------


def test_a_client_without_a_row_gets_the_uniform_one(tiny, tmp_path):
    off_by_far = replacing(sharing=np.full(3, 0.9, dtype=np.float32))
    app = breaking(raising("gone home"), 0, SHARE_KNOWLEDGE)
    app = breaking(off_by_far, 1, SHARE_KNOWLEDGE, answer=app)
    finished, _ = run_with(app, tiny, tmp_path / "run")
    assert finished.finished
    for sharing in finished.matrices["sharing"]:
        np.testing.assert_allclose(sharing[:2], 1 / 3)
        np.testing.assert_allclose(sharing[2].sum(), 1)
        assert not np.allclose(sharing[2], 1 / 3)
    reasons = finished.clients.dropna(subset=["failure"]).set_index("partition_id")["failure"]
    assert reasons[0].str.contains("gone home").all()
    assert reasons[1].str.contains("has a row that sums to").all()


def test_a_client_that_fails_in_training_drops_out_of_all_rows(tiny, tmp_path):
    witness = Witness(breaking(raising("disk is gone"), only_round=1))
    finished, _ = run_with(witness, tiny, tmp_path / "run")
    first = finished.matrices["sharing"][0]
    np.testing.assert_allclose(first[[0, 2], 1], 0)
    np.testing.assert_allclose(first[[0, 2]].sum(axis=1), 1)
    np.testing.assert_allclose(first[1], 1 / 3)
    # The others' rows are those of the full matrix, renormalised over whoever is left.
    logits = np.stack([witness.up[1, "train", n][CLASS_LOGITS] for n in (0, 2)])
    flags = np.stack([witness.up[1, "train", n][CLASS_FLAGS] for n in (0, 2)])
    h = irrelevancy(np.insert(logits, 1, 7.0, axis=0), np.insert(flags, 1, 1.0, axis=0), 0.5)
    whole = sharing_row(h[0], first_client(tiny, 0).label_distribution())
    np.testing.assert_allclose(first[0, [0, 2]], whole[[0, 2]] / whole[[0, 2]].sum(), rtol=1e-4)
    # It goes on from where it was, and takes part again.
    np.testing.assert_array_equal(
        witness.down[2, "train", 1]["alphas"], witness.down[1, "train", 0]["alphas"]
    )
    assert (finished.matrices["sharing"][1] > 0).all()


def test_huge_logits_reach_no_client_as_nan(tiny, tmp_path):
    monstrous = np.full((10, 10), -9e7, dtype=np.float32)
    monstrous[:, 0] = 9e7
    arrays = {CLASS_LOGITS: monstrous, CLASS_FLAGS: np.ones(10, dtype=np.float32)}
    finished, _ = run_with(breaking(replacing(**arrays)), tiny, tmp_path / "run")
    assert (finished.rounds["failures"] == 0).all()
    sharing = finished.matrices["sharing"]
    np.testing.assert_allclose(sharing.sum(axis=2), 1)
    assert (sharing[:, [0, 2], 1] < 1e-6).all()


@pytest.mark.parametrize("flag", [0.5, 2])
def test_flags_other_than_0_and_1_are_refused(flag):
    strategy = FedKMA(RunPlan(num_clients=2, num_classes=3), FedKMASettings())
    with pytest.raises(InvalidReplyError, match="values other than 0 and 1"):
        strategy.check_reply(reply_with({CLASS_FLAGS: np.array([0, flag, 1])}))


# ---- State, settings, results --------------------------------------------------------------


def test_genotypes_are_the_strongest_operation_of_every_edge(tiny, tmp_path):
    changes = {"supernet-nodes": 2, "fedkma.alpha-learning-rate": 0.05, "num-server-rounds": 1}
    finished = fedkd_flwr.run({**tiny, **changes}, output_dir=tmp_path / "run")
    names = SUPERNET_OPERATIONS.split(",")
    genotypes = client_genotypes(finished)
    assert len(genotypes) == 3
    for n, genotype in enumerate(genotypes):
        for kind, cell in (("normal", genotype.normal), ("reduce", genotype.reduce)):
            alphas = finished.matrices["alphas"][-1][n].reshape(2, 5, 4)
            alpha = alphas[("normal", "reduce").index(kind)]
            # Edges 0 and 1 lead to node 0, edges 2, 3 and 4 to node 1.
            for edges, node in (((0, 1), cell[0]), ((2, 3, 4), cell[1])):
                strongest = [(names[alpha[edge].argmax()], edge - edges[0]) for edge in edges]
                kept = [choice for choice in strongest if choice[0] != "none"]
                if kept:
                    assert [tuple(choice) for choice in node] == kept
                else:
                    assert len(node) == 1
    pictures = plots.draw_genotypes(finished, tmp_path / "pictures")
    assert [picture.name for picture in pictures] == [f"client-{n}.png" for n in range(3)]
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    assert len(plots.plot_genotype(finished, 1).axes) == 2  # a normal and a reduction cell
