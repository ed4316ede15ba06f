"""Losses against formulas written out, and optimizers against PyTorch's own."""

import copy
import math

import numpy as np
import pytest
import torch
from helpers import client_of
from torch import nn
from torch.nn import functional

from fedkd_flwr.clients.local_training import LocalTraining
from fedkd_flwr.memory.memory import Memory
from fedkd_flwr.models.genotype import STANDARD
from fedkd_flwr.models.model_pool import Architecture
from fedkd_flwr.models.vectors import copied_state
from fedkd_flwr.training.cohort import train_together
from fedkd_flwr.training.jobs import TrainJob, undone_if_it_diverges
from fedkd_flwr.training.loop import DivergedError, build_optimizer, scheduled_rate
from fedkd_flwr.training.losses import (
    cross_entropy,
    cross_entropy_to_teacher,
    kl_from_teacher,
    kl_to_teacher,
    squared_distance,
)

OWN = {
    "sgd": lambda weights: torch.optim.SGD(weights, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda weights: torch.optim.Adam(weights, 0.1, weight_decay=0.01),
    "adamw": lambda weights: torch.optim.AdamW(weights, 0.1, weight_decay=0.01),
}


def take_steps(model, optimizer):
    for seed in range(3):
        images = torch.randn(8, 5, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        functional.cross_entropy(model(images), torch.arange(8) % 3).backward()
        optimizer.step()


@pytest.mark.parametrize("name", OWN)
def test_steps_equal_those_of_pytorch_bit_for_bit(name):
    expected = nn.Linear(5, 3)
    model = copy.deepcopy(expected)
    theirs = OWN[name](expected.parameters())
    ours = build_optimizer(name, model.parameters(), 0.1, 0.9, 0.01)
    take_steps(expected, theirs)
    take_steps(model, ours)

    # Goes on from the state of the other, as after a restart.
    continued = build_optimizer(name, model.parameters(), 0.1, 0.9, 0.01)
    continued.load_state_dict(copy.deepcopy(theirs.state_dict()))
    take_steps(expected, theirs)
    take_steps(model, continued)
    torch.testing.assert_close(expected.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_moments_of_adam_make_the_second_round_another(small):
    """A client that forgot them would take the second round's steps as if they were the first."""
    ends = []
    for forgets in (False, True):
        client = client_of(small, strategy="local", models="mlp", optimizer="adam")
        client.train_locally(1)
        if forgets:
            del client.session.memory.tensors["optimizer"]
        client.train_locally(2)
        ends.append(next(client.model.parameters()).detach().clone())
    assert not np.array_equal(*ends)


def test_schedules_by_hand():
    rates = {
        name: [scheduled_rate(0.8, name, t, 4) for t in (1, 2, 3, 4)]
        for name in ("constant", "cosine", "step")
    }
    assert rates["constant"] == [0.8] * 4
    np.testing.assert_allclose(rates["step"], [0.8, 0.8, 0.08, 0.008])
    np.testing.assert_allclose(
        rates["cosine"], [0.4 * (1 + c) for c in (1, 2**-0.5, 0, -(2**-0.5))]
    )


# ---- Losses -------------------------------------------------------------------------------


def test_kl_by_hand():
    # One sample, two classes, T = 2: the student's probabilities are softmax((0, 2 log 3) / 2)
    # = (1/4, 3/4); the teacher is (1/2, 1/2).
    logits = torch.tensor([[0.0, 2 * math.log(3)]])
    teacher = torch.tensor([[0.5, 0.5]])
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert kl_to_teacher(logits, teacher, 2.0).item() == pytest.approx(expected)
    assert kl_to_teacher(logits, teacher, 2.0, t_squared=True).item() == pytest.approx(4 * expected)
    reverse = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    assert kl_from_teacher(logits, teacher, 2.0).item() == pytest.approx(reverse)
    cross_entropy = -0.5 * math.log(0.25) - 0.5 * math.log(0.75)
    assert cross_entropy_to_teacher(logits, teacher, 2.0).item() == pytest.approx(cross_entropy)


@pytest.mark.parametrize("divergence", [kl_to_teacher, kl_from_teacher])
def test_kl_is_a_mean_over_samples_and_zero_for_the_teacher_itself(divergence):
    torch.manual_seed(0)
    logits = torch.randn(5, 4)
    teacher = torch.softmax(logits / 3, dim=1)
    assert divergence(logits, teacher, 3.0).item() == pytest.approx(0, abs=1e-6)
    other = torch.softmax(torch.randn(5, 4), dim=1)
    each = [divergence(logits[i : i + 1], other[i : i + 1], 3.0) for i in range(5)]
    whole = divergence(logits, other, 3.0)
    assert whole.item() == pytest.approx(torch.stack(each).mean().item())


@pytest.mark.parametrize("divergence", [kl_to_teacher, kl_from_teacher])
def test_a_teacher_with_zeros_gives_a_finite_loss_and_gradient(divergence):
    logits = torch.tensor([[50.0, -50.0]], requires_grad=True)
    divergence(logits, torch.tensor([[0.0, 1.0]]), 1.0).backward()
    assert torch.isfinite(logits.grad).all()


def test_squared_distance_by_hand():
    predictions = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    target = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    # Distances 0.25 + 0.25 and 0, mean 0.25.
    assert squared_distance(predictions, target).item() == pytest.approx(0.25)


# ---- A model that overflows after its last loss --------------------------------------


class Normalized(nn.Module):
    """Normalizes its inputs, and has a mask with intended infinite entries."""

    def __init__(self, shape, classes):
        super().__init__()
        self.normalization = nn.BatchNorm1d(math.prod(shape))
        self.head = nn.Linear(math.prod(shape), classes)
        self.register_buffer("mask", torch.tensor(-math.inf), persistent=False)

    def forward(self, samples):
        return self.head(self.normalization(samples.flatten(1)))


def jobs_of(name, scales, rate):
    """Return trainings of one step, on images as large as the scales say."""
    torch.manual_seed(0)
    images, labels = torch.rand(8, 1, 4, 4), torch.arange(8)
    architecture = Architecture(name, (1, 4, 4), 10, STANDARD, "cpu")
    models = [architecture.build() for _ in scales]
    return [
        TrainJob(
            model,
            cross_entropy,
            build_optimizer("sgd", model.parameters(), rate),
            [(images * scale, labels)],
        )
        for model, scale in zip(models, scales, strict=True)
    ]


def one_after_the_other(jobs):
    results = []
    for job in jobs:
        try:
            results.append(job.run())
        except DivergedError as error:
            results.append(error)
    return results


@pytest.mark.parametrize("train", [one_after_the_other, train_together])
@pytest.mark.parametrize(
    ("name", "scale", "rate"),
    [("mlp", 1e36, 1e4), ("test_losses_and_optimizers:Normalized", 1e25, 0.1)],
)
def test_only_the_client_whose_last_step_overflows_fails(train, name, scale, rate):
    """Weights of the mlp do, and variances of the other, whose weights stay finite."""
    jobs = jobs_of(name, (1.0, scale, 1.0), rate)
    first, second, third = train(jobs)
    assert isinstance(second, DivergedError)
    assert "model is not finite" in str(second)
    assert math.isfinite(first) and math.isfinite(third)


def test_a_client_keeps_its_previous_model(small, monkeypatch):
    small |= {"strategy": "local", "models": "mlp", "local-iterations": 1, "weight-decay": 1e3}
    call = {"names": [], "server-round": 1, "phase": "train"}
    client = client_of(small)
    client.fit([], call)
    before = {k: v.clone() for k, v in client.session.memory.load("model").items()}
    wild = client_of(small)
    wild.session.memory.replace(client.session.memory)
    monkeypatch.setattr(LocalTraining, "rate", lambda local, server_round: 1e38)
    with pytest.raises(DivergedError, match="model is not finite"):
        wild.fit([], {**call, "server-round": 2})
    kept = wild.session.memory.load("model")
    assert all(torch.equal(kept[name], value) for name, value in before.items())


@pytest.mark.parametrize(("rate", "diverges"), [(0.1, False), (1e20, True)])
def test_a_client_goes_on_from_the_model_before_a_training_that_is_undone(rate, diverges):
    (job,) = jobs_of("mlp", [1e30], rate)
    before, told, loss = copied_state(job.model), [], None
    job.optimizer.state[next(job.model.parameters())]["momentum_buffer"] = torch.ones(1)
    with undone_if_it_diverges(job.model, job.optimizers, told.append):
        loss = job.run()
    after = copied_state(job.model)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items()) is diverges
    assert (loss is None) is diverges
    assert len(told) == int(diverges)
    assert bool(job.optimizer.state) is not diverges


def test_the_momentum_of_a_training_that_is_undone_is_forgotten():
    """Parameters that are left out keep what was stored."""
    model = nn.Linear(2, 2)
    optimizer = build_optimizer("sgd", model.parameters(), 0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    memory = Memory()
    names = {own: f"model/{name}" for name, own in model.named_parameters()}
    memory.save_momentum(optimizer, names)
    memory.save_momentum(optimizer, names, without=list(model.parameters()))
    part, whole = memory.part(""), Memory()
    whole.keep_part("", memory)
    assert memory.load("optimizer") and whole.load("optimizer")
    optimizer.state.clear()
    part.save_momentum(optimizer, names)
    whole.keep_part("", part)
    assert part.load("optimizer") is whole.load("optimizer") is None


def test_numbers_that_a_part_of_a_memory_forgets_are_forgotten():
    whole = Memory(numbers={"safeguard-best": {"round": 3.0}})
    part = whole.part("safeguard-")
    part.forget("best")
    whole.keep_part("safeguard-", part)
    assert whole.numbers == {}
