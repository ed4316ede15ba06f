"""Limits of cohorts: other optimizers, ignored labels, errors of single clients."""

import copy
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import fedkd_flwr
from fedkd_flwr.clients.parameters import FedAvgClient
from fedkd_flwr.methods import METHODS
from fedkd_flwr.models import model_pool
from fedkd_flwr.models.model_pool import Architecture
from fedkd_flwr.models.settings import ModelSettings
from fedkd_flwr.training.cohort import cohort_key, run_together, train_together
from fedkd_flwr.training.jobs import PredictJob, TrainJob, result_of
from fedkd_flwr.training.loop import SGD, build_optimizer
from fedkd_flwr.training.losses import cross_entropy

MLP = Architecture("mlp", (1, 4, 4), 10, ModelSettings().search_space, "cpu")


pytestmark = pytest.mark.usefixtures("empty_pool")


def model():
    torch.manual_seed(0)
    return MLP.build()


def batch():
    return torch.randn(6, 1, 4, 4), torch.randint(0, 10, (6,))


def job(network, loss=cross_entropy, batches=None, optimizer=None, rate=0.1):
    step = optimizer or SGD(network.parameters(), rate)
    return TrainJob(network, loss, step, [batch()] if batches is None else batches)


class Clipped(torch.optim.SGD):
    def step(self, closure=None):
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.1)
        return super().step(closure)


def hooked(parameters):
    optimizer = SGD(parameters, 0.1)
    optimizer.register_step_pre_hook(lambda *_: None)
    return optimizer


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, dampening=0.5),
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True),
        lambda parameters: torch.optim.SGD(parameters, 0.1, maximize=True),
        lambda parameters: Clipped(parameters, 0.1),
        hooked,
    ],
)
def test_a_step_that_is_not_plain_is_taken_alone(optimizer):
    network = model()
    assert cohort_key(job(network, optimizer=optimizer(network.parameters()))) is None
    assert cohort_key(job(network)) is not None


def test_frozen_parameters_stay_as_they_are_in_a_cohort():
    networks = [model() for _ in range(2)]
    for network in networks:
        next(network.parameters()).requires_grad_(False)
    before = [parameter.detach().clone() for parameter in networks[0].parameters()]
    assert cohort_key(job(networks[0])) == cohort_key(job(networks[1])) != cohort_key(job(model()))
    train_together([job(network) for network in networks])
    moved = [not torch.equal(*pair) for pair in zip(networks[0].parameters(), before, strict=True)]
    assert moved == [False, True, True, True]


@dataclass(frozen=True)
class Weighted:
    """A loss with client-specific class weights, and optionally attributes without a hash."""

    tensors: tuple
    notes: list | None = None

    def __eq__(self, other):
        return isinstance(other, Weighted)

    def __hash__(self):
        return hash(None if self.notes is None else self.notes)

    def __call__(self, network, images, labels):
        return functional.cross_entropy(network(images), labels) * self.tensors[0].sum()


def test_losses_with_tensors_of_different_shapes_are_of_different_kinds():
    kinds = {cohort_key(job(model(), Weighted((torch.ones(size),)))) for size in (2, 2, 3)}
    assert len(kinds) == 2


def test_a_loss_without_a_hash_runs_alone():
    assert cohort_key(job(model(), Weighted((), notes=["mine"]))) is None


def ignoring(network, images, labels):
    """Ignore one class explicitly, and another one by PyTorch's default label."""
    logits, marked = network(images), torch.where(labels == labels.min(), -100, labels)
    by_name = functional.cross_entropy(logits, labels, ignore_index=3)
    return functional.cross_entropy(logits, marked) + by_name


class Ignoring(FedAvgClient):
    def local_loss(self, received):
        return ignoring


def test_a_custom_method_has_the_same_results_with_and_without_cohorts(small, tmp_path):
    own = {**small, "models": "mlp", "strategy": (METHODS["fedavg"].strategy, Ignoring)}
    together, alone = (
        fedkd_flwr.run(own, cohort=cohort, output_dir=tmp_path / cohort).rounds["train_loss_mean"]
        for cohort in ("auto", "off")
    )
    assert list(together) == pytest.approx(list(alone), rel=1e-5)


class Dropping(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], 9), nn.Dropout())
        self.head = nn.Linear(9, classes)

    def forward(self, images):
        return self.head(self.body(images))


@pytest.mark.parametrize("strategy", ["fml", "fedkd", "fedapen", "fedmrl"])
def test_a_shared_model_that_draws_is_trained_alone_with_seeded_draws(strategy, small, tmp_path):
    small |= {
        "models": "mlp", "strategy": strategy, "cohort": "on", "num-server-rounds": 1,
        "num-clients": 2, f"{strategy}.shared-model": "test_cohort_limits:Dropping",
    }  # fmt: skip
    losses = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        run = fedkd_flwr.run(small, output_dir=tmp_path / str(seed))
        losses.append(run.rounds["train_loss_mean"].item())
    assert losses[0] == losses[1]


# ---- One client's error ---------------------------------------------------------------


def failing(after):
    for _ in range(after):
        yield batch()
    raise OSError("its disk is gone")


@pytest.mark.parametrize("after", [0, 2])
def test_only_the_client_whose_batches_fail_is_dropped(after):
    torch.manual_seed(1)
    batches = [batch() for _ in range(4)]
    alone = model()
    expected = job(alone, batches=batches).run()
    beside = model()
    found = train_together(
        [job(model(), batches=failing(after)), job(beside, batches=batches), job(model())]
    )
    assert isinstance(found[0], OSError)
    assert found[1] == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(beside.state_dict(), alone.state_dict())


def test_only_the_client_whose_batch_is_refused_is_dropped():
    """Batch normalization cannot train on one sample."""
    normed = replace(MLP, name="tests.disclosure:NormedNet")
    networks = [normed.build() for _ in range(3)]
    batches = [
        [(torch.randn(size, 1, 4, 4), torch.randint(0, 10, (size,)))] * 2 for size in (20, 1, 30)
    ]
    alone = copy.deepcopy(networks[2])
    expected = job(alone, batches=batches[2]).run()
    found = train_together(
        [job(*own) for own in zip(networks, [cross_entropy] * 3, batches, strict=True)]
    )
    assert isinstance(found[1], ValueError)
    assert isinstance(found[0], float)
    assert found[2] == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(networks[2].state_dict(), alone.state_dict())


def broken(network, images, labels):
    raise ValueError("no such loss")


def test_a_failing_loss_is_raised_in_its_clients_and_the_others_continue():
    def client(loss):
        return result_of(job(model(), loss))

    answers = run_together(
        [partial(client, loss) for loss in (broken, cross_entropy, broken)], "cpu"
    )
    assert [type(answer) for answer in answers] == [ValueError, float, ValueError]


class Forgetful(FedAvgClient):
    """One client fails in its evaluation while it has a borrowed model."""

    def evaluated(self, received, server_round):
        evaluated = super().evaluated(received, server_round)
        if self.partition_id == 1:
            raise OSError("its disk is gone")
        return evaluated


def test_a_client_that_fails_returns_its_model(small, tmp_path, monkeypatch):
    built, build = [], model_pool._built
    monkeypatch.setattr(model_pool, "_built", lambda kind: built.append(kind) or build(kind))
    changes = {"models": "mlp", "strategy": (METHODS["fedavg"].strategy, Forgetful)}
    changes |= {"cohort": "on", "num-server-rounds": 3, "on-client-error": "drop"}
    finished = fedkd_flwr.run({**small, **changes}, output_dir=tmp_path / "run")
    assert finished.clients["failure"].notna().any()
    assert 0 < len(built) <= len(finished.clients["partition_id"].unique())


def test_clients_that_run_in_turn_need_one_model(small, tmp_path):
    kept = []
    changes = {"models": "mlp", "strategy": "local", "num-clients": 6}
    fedkd_flwr.run(
        {**small, **changes},
        output_dir=tmp_path / "run",
        on_round=lambda row: kept.append(sum(map(len, model_pool._FREE.values()))),
    )
    assert kept == [1, 1]


# ---- Suspended clients ---------------------------------------------------------------


IMAGES, LABELS = torch.ones(4, 3), torch.tensor([0, 1, 0, 1])


def predicted():
    return result_of(PredictJob(nn.Linear(3, 2), IMAGES))


def trained():
    model = nn.Linear(3, 2)
    optimizer = build_optimizer("sgd", model.parameters(), 0.1)
    return result_of(TrainJob(model, cross_entropy, optimizer, [(IMAGES, LABELS)]))


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode, partial(torch.autocast, "cpu", torch.bfloat16)]
)
def test_a_client_suspended_in_a_mode_leaves_others_in_theirs(mode):
    def modes():
        inference, autocast = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        return torch.is_grad_enabled(), inference, autocast

    def in_mode():
        outside = modes()
        with mode():
            inside = modes()
            predicted()
            assert modes() == inside
        return outside == modes() != inside

    def without():
        before = modes()
        trained()
        trained()
        return modes() == before

    before = modes()
    assert run_together([in_mode, without, in_mode], "cpu") == [True, True, True]
    assert modes() == before


def test_each_client_has_a_random_state_of_its_own():
    def client(seed):
        torch.manual_seed(seed)
        first = float(torch.rand(1))
        predicted()
        return first, float(torch.rand(1))

    before = torch.get_rng_state()
    expected = [client(seed) for seed in (1, 2)]
    torch.set_rng_state(before)
    assert run_together([partial(client, seed) for seed in (1, 2)], "cpu") == expected
    assert torch.equal(torch.get_rng_state(), before)


def test_suspended_clients_are_closed_if_the_cohort_stops(monkeypatch):
    closed = []

    def client(number):
        try:
            predicted()
        finally:
            closed.append(number)

    def interrupted(jobs):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedkd_flwr.training.cohort._do", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_together([partial(client, number) for number in range(3)], "cpu")
    assert closed == [0, 1, 2]


class Yielding(FedAvgClient):
    """A client as it was written for version 0.1.0."""

    def train(self, received, server_round, phase):
        reply = yield from super().train(received, server_round, phase)
        return reply


class Wordless(FedAvgClient):
    def train(self, received, server_round, phase):
        self.receive_model(received)


@pytest.mark.parametrize("cohort", ["on", "off"])
@pytest.mark.parametrize(
    ("client", "words"),
    [
        (Yielding, r"Yielding.train yields jobs; it is a plain function now: remove"),
        (Wordless, r"Wordless.train returned a NoneType; return a TrainReply"),
    ],
)
def test_a_client_without_a_reply_is_refused(client, words, cohort, small, tmp_path):
    fedkd_flwr.register("own", METHODS["fedavg"].strategy, client)
    with pytest.raises(RuntimeError, match=words):
        fedkd_flwr.run(small, strategy="own", models="mlp", cohort=cohort, output_dir=tmp_path)
