"""DP-SGD in local training: clipping, noise, epsilon, and which methods and models allow it."""

import math
from math import comb, exp, log

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from helpers import client_of, most_of_them_slow, run_with
from torch import nn

import fedkd_flwr
from fedkd_flwr.bundles.approved_runs import approve_run
from fedkd_flwr.client_app import app
from fedkd_flwr.clients.messages import Request
from fedkd_flwr.clients.policy import PolicyError
from fedkd_flwr.clients.privacy_ledger import NOISE
from fedkd_flwr.config import ConfigError, methods_with, read_config
from fedkd_flwr.data.clients import load_client
from fedkd_flwr.methods import METHODS
from fedkd_flwr.models.torch_internals import mixes_samples
from fedkd_flwr.training.dp_sgd import (
    PrivateGradients,
    added,
    epsilon_spent,
    gradients_of_samples,
    poisson_batches,
)
from fedkd_flwr.training.jobs import PredictJob, TrainJob
from fedkd_flwr.training.loop import predict_logits, train_on
from fedkd_flwr.training.losses import CoDistillation, Proximal, cross_entropy
from strategies.core.metrics import MODELS, metrics_of
from strategies.core.privacy import privacy_spent
from tests.disclosure import NormedNet

ON = {"dp-sgd-noise-multiplier": 1.0, "dp-sgd-noise-seed": 3}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4))


@pytest.fixture
def batch():
    images = torch.randn(7, 1, 8, 8, generator=generator(1)) * 3
    return images, torch.arange(7) % 4


def gradient_of(model, loss, *batch):
    parts = torch.autograd.grad(loss(model, *batch), list(model.parameters()))
    return torch.cat([part.flatten() for part in parts])


def one_by_one(model, loss, images, labels, shared=()):
    samples = zip(images.split(1), labels.split(1), strict=True)
    return torch.stack([gradient_of(model, loss, *sample, *shared) for sample in samples])


def flat(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


# ---- Gradients ------------------------------------------------------------------------


def proximal(model):
    return Proximal([parameter.detach() + 0.1 for parameter in model.parameters()], 2.0)


def test_the_gradient_of_each_sample_is_autograds(network, batch):
    for loss in (cross_entropy, proximal(network)):
        parts = gradients_of_samples(network, loss, batch)
        found = torch.cat([part.flatten(1) for part in parts.values()], dim=1)
        torch.testing.assert_close(found, one_by_one(network, loss, *batch), rtol=1e-4, atol=1e-6)


def test_a_public_batch_is_taken_whole(network, batch):
    """Its rows are those of no private sample, and may be more or fewer."""
    public = torch.randn(5, 1, 8, 8, generator=generator(2))
    shared = (public, torch.full((5, 4), 0.25))
    parts = gradients_of_samples(network, CoDistillation(2.0), batch, shared)
    found = torch.cat([part.flatten(1) for part in parts.values()], dim=1)
    expected = one_by_one(network, CoDistillation(2.0), *batch, shared)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def gradients_by(gradients, network, batch):
    return gradients(network, cross_entropy, batch, list(network.parameters()))


@pytest.mark.parametrize("clip_norm", [1e-45, 1e-7, 1e7])
def test_a_norm_at_which_single_precision_loses_the_noise_is_refused(clip_norm, small):
    with pytest.raises(ConfigError, match="dp-sgd-clip-norm"):
        read_config({**small, "dp-sgd-clip-norm": clip_norm})


@pytest.mark.parametrize("clip_norm", [0.01, 1.0, 4.0, 1e6])
def test_each_sample_is_clipped(clip_norm, network, batch, monkeypatch):
    monkeypatch.setattr("fedkd_flwr.training.dp_sgd.AT_ONCE", 3)
    single = one_by_one(network, cross_entropy, *batch)
    clipped = [g * min(1.0, clip_norm / float(g.norm())) for g in single]
    loss = gradients_by(PrivateGradients(clip_norm, 0.0, 5.0), network, batch)
    torch.testing.assert_close(flat(network), torch.stack(clipped).sum(0) / 5, rtol=1e-4, atol=1e-6)
    assert loss == 0


def test_one_sample_changes_a_sum_by_no_more_than_the_norm_in_half_precision():
    """Autocast would round the sums of the other samples too, and the noise hides one sample."""
    # Gradients of nearly one direction have large sums.
    images = 1 + 0.3 * torch.randn(1000, 1, 8, 8, generator=generator(3))
    labels = torch.zeros(1000, dtype=torch.int64)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    nn.init.zeros_(network[1].weight)
    sums = []
    for first in (0, 1):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            gradients_by(
                PrivateGradients(1.0, 0.0, 1.0),
                network,
                (images[first:], labels[first:]),
            )
        sums.append(flat(network))
    assert (sums[0] - sums[1]).norm() <= 1 + 1e-4


def test_noise_has_the_given_deviation_and_no_batch_is_needed(network):
    nothing = torch.empty(0, 1, 8, 8), torch.empty(0, dtype=torch.int64)
    noised = PrivateGradients(2.0, 1.5, 4.0, np.random.default_rng(0).standard_normal)
    loss = gradients_by(noised, network, nothing)
    assert loss == 0
    first = flat(network).clone()
    assert first.std().item() == pytest.approx(2.0 * 1.5 / 4.0, rel=0.1)
    assert abs(first.mean().item()) < 0.1
    gradients_by(noised, network, nothing)
    assert not torch.equal(first, flat(network))


def test_only_the_chosen_parameters_get_gradients(network, batch):
    *others, last = network.parameters()
    PrivateGradients(1.0, 1.0, 4.0)(network, cross_entropy, batch, [last])
    assert last.grad is not None
    assert all(parameter.grad is None for parameter in others)


def test_a_sample_that_is_no_number_does_not_undo_clipping(network, batch):
    images, labels = batch
    ruined = images.clone()
    ruined[2] = math.nan
    told = gradients_by(PrivateGradients(1.0, 0.0, 1.0), network, (ruined, labels))
    assert told == 0  # A loss that is no number would end the training, which the server sees.
    without = [n for n in range(7) if n != 2]
    expected = flat(network).clone()
    private = PrivateGradients(1.0, 0.0, 1.0)
    gradients_by(private, network, (images[without], labels[without]))
    torch.testing.assert_close(flat(network), expected)


def test_batches_are_drawn_independently():
    drawn = list(poisson_batches(50, 0.2, 400, np.random.default_rng(0).random))
    sizes = np.array([len(batch) for batch in drawn])
    assert sizes.mean() == pytest.approx(10, rel=0.05)
    assert sizes.var() == pytest.approx(50 * 0.2 * 0.8, rel=0.2)
    counts = torch.bincount(torch.cat(drawn), minlength=50).numpy() / 400
    assert counts == pytest.approx(np.full(50, 0.2), abs=0.08)


# ---- Epsilon --------------------------------------------------------------------------


def epsilon_by_hand(rate, noise, steps, delta):
    """Rényi divergences of the sampled Gaussian mechanism at whole orders (Mironov et al. 2019,
    arXiv:1908.10530, section 3.3), composed, and converted (Canonne et al. 2020, Prop. 12)."""
    best = math.inf
    for order in range(2, 64):
        terms = [
            log(comb(order, k))
            + k * log(rate)
            + (k * k - k) / (2 * noise**2)
            + ((order - k) * log(1 - rate) if k < order else 0.0)
            for k in range(order + 1)
            if k == order or rate < 1
        ]
        largest = max(terms)
        logarithm = largest + log(sum(exp(term - largest) for term in terms))
        divergence = steps * logarithm / (order - 1)
        further = log(1 - 1 / order) - log(delta * order) / (order - 1)
        best = min(best, divergence + further)
    return best


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.1, 1.0, 20), (0.02, 1.5, 500), (1, 4, 3)])
def test_epsilon_is_that_by_hand(rate, noise, steps):
    spent = np.array([[rate, noise, steps]])
    by_hand = epsilon_by_hand(rate, noise, steps, 1e-5)
    # The accountant also tries orders between whole ones.
    assert by_hand * 0.97 < epsilon_spent(spent, 1e-5) <= by_hand + 1e-9


def test_epsilon_adds_up_over_rounds_and_rates():
    nothing = np.empty((0, 3))
    assert epsilon_spent(nothing, 1e-5) == 0
    once = added(nothing, 0.1, 1.0, 5)
    twice = added(once, 0.1, 1.0, 5)
    np.testing.assert_array_equal(twice, [[0.1, 1.0, 10]])
    grown = added(twice, 0.05, 1.0, 5)
    np.testing.assert_array_equal(grown, [[0.1, 1.0, 10], [0.05, 1.0, 5]])
    values = [epsilon_spent(spent, 1e-5) for spent in (once, twice, grown)]
    assert values == sorted(values)
    assert len(set(values)) == 3


# ---- Runs -----------------------------------------------------------------------------


@pytest.fixture
def private(small):
    changes = {"strategy": "fedavg", "models": "mlp", "local-iterations": 3, "max-samples": 300}
    return {**small, **changes, **ON}


def test_epsilon_is_recorded_per_client_and_round(private, tmp_path):
    run = fedkd_flwr.run(private, output_dir=tmp_path / "run")
    sizes = run.clients.groupby("partition_id")["num_examples"].first()
    for n, size in sizes.items():
        rows = run.clients[run.clients["partition_id"] == n].sort_values("round")
        rate = 16 / size
        expected = [epsilon_spent(np.array([[rate, 1.0, steps]]), 1e-5) for steps in (3, 6)]
        assert list(rows["dp_epsilon"]) == pytest.approx(expected)
    largest = run.clients.groupby("round")["dp_epsilon"].max()
    assert list(run.rounds["dp_epsilon_max"]) == pytest.approx(list(largest))
    assert list(run.rounds["gradient_steps"]) == [12, 12]


def test_a_resumed_run_has_the_same_epsilon(private, tmp_path):
    whole = fedkd_flwr.run(private, output_dir=tmp_path / "whole")
    fedkd_flwr.run(private, num_server_rounds=1, output_dir=tmp_path / "parts")
    parts = fedkd_flwr.resume(tmp_path / "parts", num_server_rounds=2)
    for column in ("dp_epsilon", "loss"):
        np.testing.assert_array_equal(parts.clients[column], whole.clients[column])


def test_two_runs_with_secret_noise_differ(private, tmp_path):
    secret = {**private, "dp-sgd-noise-seed": -1, "num-server-rounds": 1}
    runs = [fedkd_flwr.run(secret, output_dir=tmp_path / name) for name in "ab"]
    assert list(runs[0].clients["loss"]) != list(runs[1].clients["loss"])
    assert list(runs[0].clients["dp_epsilon"]) == list(runs[1].clients["dp_epsilon"])


ALLOWED = methods_with("dp_sgd")


def is_custom(own, images):
    return any(row.numpy().tobytes() in own for row in images)


@pytest.mark.parametrize("strategy", most_of_them_slow(ALLOWED))
def test_replies_of_private_training_tell_nothing_else(strategy, private, tmp_path, monkeypatch):
    """All training on private samples goes through `PrivateGradients`, and no loss is sent."""
    settings = {**private, "strategy": strategy, "local-iterations": 2}
    metrics = set()

    def watch(message, context):
        reply = app(message, context)
        if message.metadata.message_type == "train":
            metrics.update(reply.content.metric_records["metrics"])
        return reply

    plan = read_config(settings).run.data_plan
    own = {row.numpy().tobytes() for n in range(4) for row in load_client(plan, n).train_images}
    unprotected = []

    def train(job):
        batches = list(job.batches)
        if not isinstance(job.gradients, PrivateGradients):
            unprotected.extend(is_custom(own, images) for images, *_ in batches)
        return train_on(job.model, job.loss, job.optimizer, batches, job.gradients)

    def predict(job):
        unprotected.append(is_custom(own, job.images))
        return predict_logits(job.model, job.images)

    monkeypatch.setattr(TrainJob, "run", train)
    monkeypatch.setattr(PredictJob, "run", predict)
    run, _ = run_with(watch, settings, tmp_path / "run")
    assert list(run.rounds["failures"]) == [0, 0]
    counts = {metric.name for metric in metrics_of(MODELS)}
    assert metrics <= counts | {"gradient-steps", "dp-epsilon"}
    assert run.clients["dp_epsilon"].notna().all()
    assert not any(unprotected)


def test_other_methods_and_models_are_refused(private, tmp_path):
    for strategy in set(METHODS) - set(ALLOWED):
        with pytest.raises(ConfigError, match=r"needs validation|plain local training"):
            read_config({**private, "strategy": strategy})
    assert "fedavg-ft" not in ALLOWED  # its base class allows it, and it does not
    with pytest.raises(ConfigError, match="has batch normalization; use mlp, lenet or cnn"):
        fedkd_flwr.run(private, models="tests.disclosure:NormedNet", output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="group normalization"):
        client = client_of({**private, "models": "tests.disclosure:NormedNet"})
        client.session.local.gradients(client.model, 10, 1, "")


def test_fine_tuning_before_an_evaluation_is_refused(private):
    """It takes steps without noise on private samples, and its counts are sent."""
    with pytest.raises(ConfigError, match=r"fine-tune-epochs trains .* without noise"):
        read_config({**private, "fine-tune-epochs": 1})


# ---- A node's policy and ledger -----------------------------------------------------------


def node_of(private, folder, **policy):
    """A client whose node has approved the run, and its number of training samples."""
    node = {"partition-id": 1, "state-dir": str(folder), "trust-server": False}
    node |= {"epsilon-budget": math.inf, "approved-runs": str(folder / "approved")}
    node |= {"min-class-count": 0, **policy}
    run_config = read_config({**private, "dp-sgd-noise-seed": -1}).flat()
    approve_run(run_config, folder / "approved")
    client = client_of({}, context=Context(1, 1, node, RecordDict(), run_config))
    return client, client.data.num_train


def begin(client, run_id):
    return client.session.local.gradients(client.model, client.data.num_train, 1, run_id)


def test_the_ledger_counts_trainings_over_runs(private, tmp_path):
    first, size = node_of(private, tmp_path)
    begin(first, "a1")
    second, _ = node_of(private, tmp_path)
    begin(second, "b2")
    both = epsilon_spent(np.array([[16 / size, 1.0, 6]]), 1e-5)
    ledger = second.session.node.ledger
    assert ledger.epsilon_of_training == pytest.approx(both)
    assert ledger.epsilon == 0
    ledger.record({NOISE: 5.0}, "c3", 1)
    assert ledger.epsilon == pytest.approx(privacy_spent(5.0, 1, 1e-5))
    assert ledger.epsilon_of_training == pytest.approx(both)


def test_a_round_that_is_repeated_counts_twice(private, tmp_path):
    """Its first reply has left the node: in the context of the same node, and after a restart."""
    for restart in (False, True):
        client, size = node_of(private, tmp_path / str(restart))
        client.session.request = asked = Request(server_round=1, run_id="a1")
        begin(client, "a1")
        client.session.save()
        client.session._remembered.note_round(asked)
        client.session.keep()
        if restart:
            client, size = node_of(private, tmp_path / str(restart))
            client.session.request = asked = Request(server_round=1, run_id="a1")
        client.session._remembered.recall(asked, 1, is_repeated=not restart)
        begin(client, "a1")
        np.testing.assert_allclose(client.session.local.spent(), [[16 / size, 1.0, 6]])
        twice = epsilon_spent(client.session.local.spent(), 1e-5)
        assert client.session.node.ledger.epsilon_of_training == pytest.approx(twice)


def test_a_budget_ends_training(private, tmp_path):
    _, size = node_of(private, tmp_path)
    once, twice = (epsilon_spent(np.array([[16 / size, 1.0, s]]), 1e-5) for s in (3, 6))
    client, _ = node_of(private, tmp_path, **{"epsilon-budget": (once + twice) / 2})
    begin(client, "a1")
    with pytest.raises(PolicyError, match="epsilon-budget of this node is spent"):
        begin(client, "b2")
    assert client.session.node.ledger.epsilon_of_training == pytest.approx(once)


def test_a_node_can_ask_for_noise_in_training(private, tmp_path):
    node_of(private, tmp_path, **{"min-noise": 1.0})
    for changes, sentence in (
        ({"dp-sgd-noise-multiplier": 0.5}, "less noise than min-noise"),
        ({"dp-sgd-noise-multiplier": 0.0}, "less noise than min-noise"),
    ):
        with pytest.raises(PolicyError, match=sentence):
            node_of({**private, **changes}, tmp_path, **{"min-noise": 1.0})


def test_which_layers_mix_samples():
    assert mixes_samples(NormedNet((1, 8, 8), 3))
    assert mixes_samples(nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True)))
    assert not mixes_samples(nn.Sequential(nn.GroupNorm(1, 3), nn.InstanceNorm2d(3)))
