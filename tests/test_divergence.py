"""A model that overflows in its last step, after the last loss, is not kept."""

import math

import pytest
import torch
from helpers import client_of
from torch import nn

from fedkd_flwr.clients.local_training import LocalTraining
from fedkd_flwr.memory import Memory
from fedkd_flwr.models.darts.genotype import SearchSpace
from fedkd_flwr.models.model_pool import Architecture
from fedkd_flwr.models.vectors import copied_state
from fedkd_flwr.training.cohort import train_together
from fedkd_flwr.training.jobs import TrainJob, undone_if_it_diverges
from fedkd_flwr.training.loop import DivergedError, build_optimizer
from fedkd_flwr.training.losses import cross_entropy


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
    architecture = Architecture(name, (1, 4, 4), 10, SearchSpace(), "cpu")
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
    [("mlp", 1e36, 1e4), ("test_divergence:Normalized", 1e25, 0.1)],
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
    before, told = copied_state(job.model), []
    job.optimizer.state[next(job.model.parameters())]["momentum_buffer"] = torch.ones(1)
    loss = undone_if_it_diverges(job, TrainJob.run, told.append)
    after = copied_state(job.model)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items()) is diverges
    assert (loss == 0.0) is diverges
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
