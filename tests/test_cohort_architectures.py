"""Every network without random draws can be trained and evaluated in a cohort, as on a GPU."""

import copy

import pytest
import torch

from fedkd_flwr.models.darts.genotype import SearchSpace
from fedkd_flwr.models.darts.settings import SupernetSettings
from fedkd_flwr.models.model_pool import Architecture
from fedkd_flwr.models.registry import MODELS
from fedkd_flwr.models.torch_internals import draws_while_training
from fedkd_flwr.training.cohort import predict_together, train_together
from fedkd_flwr.training.jobs import PredictJob, TrainJob
from fedkd_flwr.training.losses import cross_entropy
from fedkd_flwr.training.optimizers import build_optimizer

IMAGES = (3, 32, 32)
DEEP = {"darts", "resnet18", "shufflenetv2"}
"""Architectures that take a second or more."""

SMALL_SPACE = SearchSpace(SupernetSettings(channels=2, cells=3, nodes=1))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in DEEP else name for name in MODELS],
)
def test_a_cohort_equals_clients_alone(name):
    torch.manual_seed(0)
    architecture = Architecture(name, IMAGES, 10, SMALL_SPACE, "cpu")
    # In double precision: rounding alone moves a deep network by more than what is looked for.
    models = [architecture.build().double() for _ in range(2)]
    if draws_while_training(models[0]):
        pytest.skip("clients whose networks draw are served alone")
    alone = copy.deepcopy(models)
    batches = [(torch.randn(4, *IMAGES).double(), torch.randint(0, 10, (4,))) for _ in models]

    def jobs(networks):
        return [
            TrainJob(model, cross_entropy, build_optimizer("sgd", model.parameters(), 0.01), [own])
            for model, own in zip(networks, batches, strict=True)
        ]

    losses = train_together(jobs(models))
    assert losses == pytest.approx([job.run() for job in jobs(alone)], rel=1e-6)
    for mine, theirs in zip(models, alone, strict=True):
        for key, value in theirs.state_dict().items():
            torch.testing.assert_close(mine.state_dict()[key], value, rtol=1e-5, atol=1e-6)
    images = batches[0][0]
    together = predict_together([PredictJob(model, images) for model in models])
    for logits, model in zip(together, alone, strict=True):
        torch.testing.assert_close(logits, PredictJob(model, images).run(), rtol=1e-4, atol=1e-4)
