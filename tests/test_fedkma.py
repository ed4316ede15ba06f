"""FedKMA: mathematics against plain loops, the search's two parts, messages and failures."""

import json
import operator
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import torch
from conftest import SMALL
from helpers import (
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
from fedkd_flwr.analysis.genotypes import client_genotypes
from fedkd_flwr.clients.fedkma import FedKMAClient
from fedkd_flwr.clients.prototypes import class_means
from fedkd_flwr.clients.supernets import split_parameters
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.models.build import build_model
from fedkd_flwr.models.vectors import fill_from_vectors, model_vectors
from fedkd_flwr.runs import RunDirectoryError
from fedkd_flwr.server_app import initial_model
from fedkd_flwr.training import optimizers
from fedkd_flwr.training.cohort import cohort_key, train_together
from fedkd_flwr.training.loop import (
    DivergedError,
    backpropagate,
    predict_logits,
    refresh_statistics,
)
from fedkd_flwr.training.regularizers import parameters_of
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
)
from strategies.parameters import mix_models

OPERATIONS = "none,skip_connect,max_pool_3x3,sep_conv_3x3"
FIXED = {
    "normal": [[["skip_connect", 0], ["sep_conv_3x3", 1]]],
    "reduce": [[["max_pool_3x3", 0], ["sep_conv_3x3", 1]]],
}


def smallest(small):
    """Return a run config with the smallest supernet."""
    return {
        **small,
        "strategy": "fedkma",
        "models": "darts",
        "public-dataset": "none",
        "max-samples": 150,
        "client-split": "75/0/25",
        "num-clients": 3,
        "classes-per-client": 4,
        "learning-rate": 0.02,
        "supernet-channels": 2,
        "supernet-cells": 3,
        "supernet-nodes": 1,
        "supernet-stem-stride": 2,
        "supernet-operations": OPERATIONS,
        "fedkma.alpha-share": 0.5,
    }


@pytest.fixture
def tiny(small):
    return smallest(small)


@pytest.fixture(scope="module")
def watched_run(tmp_path_factory):
    """The messages of a run of two rounds, and the run."""
    witness = Witness()
    finished, _ = run_with(witness, smallest(SMALL), tmp_path_factory.mktemp("watched") / "run")
    return witness, finished


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


@pytest.mark.parametrize(("name", "kind"), [("sgd", optimizers.SGD), ("adam", optimizers.Adam)])
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


def test_mixing_equals_loops():
    rng = np.random.default_rng(1)
    models = [
        {
            "weights": rng.normal(size=12).astype(np.float32),
            "alphas": rng.normal(size=4).astype(np.float32),
        }
        for _ in range(3)
    ]
    sharing = rng.dirichlet(np.ones(3), size=2)
    mixed = mix_models(sharing, models)
    assert mixed.keys() == models[0].keys()
    for kind, rows in mixed.items():
        assert rows.dtype == np.float32
        for row, values in zip(sharing, rows, strict=True):
            expected = sum(m * given[kind] for m, given in zip(row, models, strict=True))
            np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)


def test_class_means_equal_loops_and_count_absent_classes():
    torch.manual_seed(0)
    logits, labels = torch.randn(9, 4), torch.tensor([0, 0, 1, 3, 3, 3, 1, 0, 0])
    means, counts = class_means(logits, labels, 4)
    assert counts.tolist() == [4, 2, 0, 3]
    for k in (0, 1, 3):
        members = [z for z, label in zip(logits, labels, strict=True) if label == k]
        torch.testing.assert_close(means[k], sum(members) / len(members))


# ---- The search on a client ----------------------------------------------------------------


def test_alpha_and_omega_take_turns_and_each_step_moves_its_own_parameters_alone(tiny):
    client = first_client({**tiny, "momentum": 0.9, "weight-decay": 0.1, "local-epochs": 1})
    alphas, omegas = split_parameters(client.model)
    assert len(alphas) == 2
    assert len(alphas) + len(omegas) == len(list(client.model.parameters()))
    before, moved = parameters_of(client.model), []

    def watched(model, loss, batch, parameters):
        """Note which parameters the step before this one has moved."""
        pairs = zip(model.named_parameters(), before, strict=True)
        moved.append({name for (name, new), old in pairs if not torch.equal(new, old)})
        before[:] = parameters_of(model)
        return backpropagate(model, loss, batch, parameters)

    job = first_job(client.search, 1)
    replace(job, gradients=watched).run()
    names = {name for name, _ in client.model.named_parameters()}
    of_alpha = {"alpha_normal", "alpha_reduce"}
    assert moved[0] == set()
    assert all(step == of_alpha for step in moved[1::2])
    # Momentum and weight decay would also move what has no gradient of this step.
    assert all(step == names - of_alpha for step in moved[2::2])
    assert len(moved) == 2 * -(-len(client.search_samples()[0]) // client.run.training.batch_size)


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
    assert len(omega) == client.num_examples // 2
    assert len(seen["omega"]) == 2 * 3 * len(omega)
    assert len(alpha) > len(omega) // 2


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_searches_side_by_side_equal_searches_alone(share, tiny):
    """Clients hold different numbers of samples, so their last batches differ in size."""
    changes = {"momentum": 0.9, "weight-decay": 0.01, "fedkma.alpha-share": share}
    tiny = {key: value for key, value in tiny.items() if key != "classes-per-client"}
    tiny |= {**changes, "partition": "dirichlet", "alpha": 1.0}
    alone, beside = ([first_client(tiny, n) for n in range(3)] for _ in range(2))
    assert len({client.num_examples for client in alone}) > 1
    expected = [client.search(1) for client in alone]
    jobs = [first_job(client.search, 1) for client in beside]
    assert len({cohort_key(job) for job in jobs}) == 1 and cohort_key(jobs[0]) is not None
    assert train_together(jobs) == pytest.approx(expected, rel=1e-3)
    for one, other in zip(alone, beside, strict=True):
        for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)


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


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_share_for_alpha_is_what_omega_does_not_see(tiny, share):
    client = first_client({**tiny, "fedkma.alpha-share": share})
    for_omega, for_alpha = client.search_samples()
    assert sorted([*for_omega.tolist(), *for_alpha.tolist()]) == list(range(client.num_examples))
    assert len(for_alpha) == pytest.approx(share * client.num_examples, abs=1)


def test_without_a_share_both_see_all_samples(tiny):
    client = first_client({**tiny, "fedkma.alpha-share": 0.0})
    everything = list(range(client.num_examples))
    assert [part.tolist() for part in client.search_samples()] == [everything, everything]


def test_a_search_needs_two_samples(tiny, monkeypatch):
    client = first_client(tiny)
    monkeypatch.setattr(FedKMAClient, "num_examples", 1)
    with pytest.raises(ValueError, match="at least 2 training samples"):
        client.search(1)


def test_a_search_whose_last_step_overflows_has_diverged(tiny):
    wild = {"learning-rate": 1e38, "weight-decay": 1e3, "local-iterations": 1}
    with pytest.raises(DivergedError, match="model is not finite"):
        first_client({**tiny, **wild}).search(1)


# ---- Whole rounds --------------------------------------------------------------------------


def test_the_next_round_receives_exactly_the_mixed_models(tiny, watched_run):
    witness, finished = watched_run
    names = {"weights", "buffers", "alphas"}
    assert initial_model(read_config(tiny)).keys() == names
    for name in names:
        for n in range(3):
            np.testing.assert_array_equal(
                witness.down[1, "train", n][name], witness.down[1, "train", 0][name]
            )
    for n in range(3):
        row = finished.matrices["sharing"][0][n]
        # M is what the client itself made of its row of H.
        np.testing.assert_allclose(row, witness.up[1, SHARE_KNOWLEDGE, n]["sharing"], rtol=1e-5)
        for name in names:
            trained = [witness.up[1, "train", j][name] for j in range(3)]
            expected = sum(m * t for m, t in zip(row, trained, strict=True))
            received = witness.down[2, "train", n][name]
            np.testing.assert_allclose(received, expected, rtol=1e-4, atol=1e-6)
            # It is evaluated on the same arrays.
            np.testing.assert_array_equal(witness.down[1, "evaluate", n][name], received)
        trained = witness.up[1, "train", n]["alphas"]
        assert (trained != witness.down[1, "train", n]["alphas"]).all()
        assert (witness.down[2, "train", n]["alphas"] != trained).all()
        np.testing.assert_array_equal(
            finished.matrices["alphas"][0][n], witness.down[2, "train", n]["alphas"]
        )
    first, second = (witness.down[2, "train", n]["alphas"] for n in (0, 1))
    assert not np.array_equal(first, second)


def test_only_models_mean_logits_flags_and_rows_cross_the_network(tiny, tmp_path):
    """Neither counts nor shares of the classes are among them, by name, shape or value."""
    # Shares that differ: equal ones could be read off the flags, which the method sends.
    flat = {**tiny, "partition": "dirichlet", "alpha": 0.5}
    witness = Witness()
    run_with(witness, flat, tmp_path / "run")
    model = build_model("darts", (1, 28, 28), 10, read_config(flat).run.models.search_space)
    shapes = {name: vector.shape for name, vector in model_vectors(model).items()}
    trained = {**shapes, CLASS_LOGITS: (10, 10), CLASS_FLAGS: (10,)}
    allowed_up = {"train": trained, SHARE_KNOWLEDGE: {"sharing": (3,)}}
    allowed_up |= {"evaluate": {}, "properties": {}}
    allowed_down = {"train": shapes, SHARE_KNOWLEDGE: {"irrelevancy": (3, 10)}, "evaluate": shapes}
    shares_of = [client_of(flat, n).label_distribution() for n in range(3)]
    for (_, phase, n), arrays in witness.up.items():
        assert {name: array.shape for name, array in arrays.items()} == allowed_up[phase]
        shares = shares_of[n]
        assert np.ptp(shares[shares > 0]) > 0.05
        for name in {CLASS_LOGITS, CLASS_FLAGS} & arrays.keys():
            for row in filter(np.any, np.atleast_2d(arrays[name])):
                # Counts and shares, however scaled, are parallel to the shares.
                cosine = row @ shares / np.linalg.norm(row) / np.linalg.norm(shares)
                assert cosine < 0.999, name
    for (_, phase, _), arrays in witness.down.items():
        assert {name: array.shape for name, array in arrays.items()} == allowed_down[phase]
    known = {"train-loss", "num-examples", "test-size", "validation-size", "correct", "total"}
    known |= {"gradient-steps", "loss", "trained-correct", "trained-total"}
    assert {name for metrics in witness.metrics.values() for name in metrics} <= known


def test_clients_flag_the_classes_they_hold(tiny, watched_run):
    witness, _ = watched_run
    for n in range(3):
        client = first_client(tiny, n)
        held = client.data.class_counts > 0
        assert 0 < held.sum() < 10
        assert witness.up[1, "train", n][CLASS_FLAGS].tolist() == held.float().tolist()
        # Mean logits are those of the trained model, not of the received one.
        client.receive_model(
            {
                name: array
                for name, array in witness.up[1, "train", n].items()
                if name not in (CLASS_LOGITS, CLASS_FLAGS)
            }
        )
        with torch.inference_mode():
            logits = client.model.eval()(client.data.train_images)
        means, _ = class_means(logits, client.data.train_labels, client.data.classes)
        sent = witness.up[1, "train", n][CLASS_LOGITS]
        np.testing.assert_allclose(sent[held], means[held], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_clients_with_shared_classes_get_larger_weights(tiny, tmp_path):
    """And as printed they weigh each other less, on the same distances."""
    flat = {**tiny, "num-clients": 4, "partition": "k-classes-grouped", "groups": 2}
    flat |= {"max-samples": 480, "local-epochs": 4, "learning-rate": 0.1}
    witness = Witness()
    finished, _ = run_with(witness, flat, tmp_path / "run")
    meant, printed = finished.matrices["sharing"][-1], np.zeros((4, 4))
    for n in range(4):
        distances = {"irrelevancy": witness.down[2, SHARE_KNOWLEDGE, n]["irrelevancy"]}
        client = first_client({**flat, "fedkma.as-printed": True}, n)
        reply = client.train(distances, 2, SHARE_KNOWLEDGE)
        printed[n] = reply.arrays["sharing"]
    same = np.kron(np.eye(2), np.ones((2, 2))).astype(bool)
    np.testing.assert_allclose(meant.sum(axis=1), 1)
    np.testing.assert_allclose(printed.sum(axis=1), 1, rtol=1e-5)
    assert meant[same].mean() > 1.2 * meant[~same].mean()
    assert printed[same].mean() < 0.9 * printed[~same].mean()


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


def test_a_fixed_genotype_trains_on_all_samples_and_shares_knowledge(tiny, tmp_path, monkeypatch):
    """Ablation 2: there is no alpha, so nothing is kept back for it."""
    changes = {"models": "darts-fixed", "genotype": json.dumps(FIXED)}
    client = first_client({**tiny, **changes})
    images = []
    client.model.register_forward_pre_hook(lambda _, inputs: images.extend(inputs[0]))
    client.search(1)
    assert len(images) == client.num_examples
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


def test_state_brings_back_matrix_and_mixed_models():
    rng = np.random.default_rng(0)
    plan = RunPlan(num_clients=3, num_classes=3)
    strategy, restored = (FedKMA(plan, FedKMASettings()) for _ in range(2))
    strategy.state = strategy.begin({"weights": np.zeros(4, dtype=np.float32)})
    strategy.state = replace(
        strategy.state,
        sharing=rng.dirichlet(np.ones(3), size=3),
        mixed={"weights": rng.normal(size=(3, 4)).astype(np.float32)},
    )
    restored.restore(2, strategy.saved_arrays(), {})
    assert restored.completed_rounds == 2
    np.testing.assert_array_equal(restored.results().matrices["sharing"], strategy.state.sharing)
    for n in range(3):
        before, after = strategy.train_payload(3, n), restored.train_payload(3, n)
        assert before.keys() == after.keys()
        for name in before:
            np.testing.assert_array_equal(before[name], after[name])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"supernet-operations": "none,conv_99x99"}, "unknown operation 'conv_99x99'; choose"),
        ({"supernet-operations": "none"}, "at least one operation besides 'none'"),
        ({"supernet-cells": 2}, "a supernet's cells must be from 3 to 100, got 2"),
        ({"genotype": "big"}, "a genotype is JSON of the form"),
        ({"fedkma.similarity-weight": 1.5}, "fedkma.similarity-weight = 1.5.*less than or equal"),
        ({"fedkma.similarity-weight": -0.1}, "fedkma.similarity-weight = -0.1.*greater than"),
        ({"fedkma.alpha-learning-rate": 0}, "fedkma.alpha-learning-rate = 0.*greater than 0"),
        ({"models": "darts,lenet"}, "needs one architecture"),
    ],
)
def test_settings_that_cannot_work_are_refused(tiny, values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_config({**tiny, **values})


def test_genotypes_are_the_strongest_operation_of_every_edge(tiny, tmp_path):
    changes = {"supernet-nodes": 2, "fedkma.alpha-learning-rate": 0.05, "num-server-rounds": 1}
    finished = fedkd_flwr.run({**tiny, **changes}, output_dir=tmp_path / "run")
    names = OPERATIONS.split(",")
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
    two_edges = client_genotypes(finished, "two-edges")
    assert [len(node) for node in two_edges[0].normal] == [2, 2]
    pictures = plots.draw_genotypes(finished, tmp_path / "pictures")
    assert [picture.name for picture in pictures] == [f"client-{n}.png" for n in range(3)]
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    assert len(plots.plot_genotype(finished, 1).axes) == 2  # a normal and a reduction cell
