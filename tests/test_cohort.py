"""Clients trained as a cohort get the same results as alone: weights, momenta, losses, failures."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import assert_same_weights
from safetensors.numpy import load_file
from torch import nn
from torch.nn import functional

import fedkd_flwr
from fedkd_flwr.clients.fedproto import TowardsPrototypes
from fedkd_flwr.clients.prototypes import class_means
from fedkd_flwr.models.genotype import SupernetSettings
from fedkd_flwr.models.model_pool import Architecture
from fedkd_flwr.models.registry import MODELS
from fedkd_flwr.models.settings import ModelSettings
from fedkd_flwr.models.torch_internals import draws_while_training
from fedkd_flwr.training import cohort, loop
from fedkd_flwr.training.batched_functions import BatchedFunctions
from fedkd_flwr.training.cohort import (
    cohort_key,
    cohort_size,
    predict_together,
    train_together,
)
from fedkd_flwr.training.jobs import PredictJob, TrainJob
from fedkd_flwr.training.loop import DivergedError, build_optimizer, computing_in
from fedkd_flwr.training.losses import Linear, Proximal, cross_entropy, parameters_of

SIZES = (20, 20, 13)
"""Samples of each client. With batches of 8, the last batches differ in size."""


def architecture(name):
    return Architecture(name, (1, 28, 28), 10, ModelSettings().search_space, "cpu")


def models_of(name):
    torch.manual_seed(0)
    return [architecture(name).build() for _ in SIZES]


def batches_of(client, epochs=2):
    generator = torch.Generator().manual_seed(client)
    images = torch.randn(SIZES[client], 1, 28, 28, generator=generator)
    labels = torch.randint(0, 10, (SIZES[client],), generator=generator)
    starts = range(0, SIZES[client], 8)
    return [(images[s : s + 8], labels[s : s + 8]) for s in starts] * epochs


def first_two(jobs):
    """Use only two batches, one of them smaller, for slow networks."""
    return [
        TrainJob(job.model, job.loss, job.optimizer, [job.batches[0], job.batches[-1]])
        for job in jobs
    ]


def jobs_of(models, rate=0.02, **settings):
    return [
        TrainJob(model, cross_entropy, step, batches_of(client))
        for client, model in enumerate(models)
        for step in [build_optimizer("sgd", model.parameters(), rate, **settings)]
    ]


def assert_same_momenta(optimizer, other):
    found, expected = (each.state_dict()["state"] for each in (optimizer, other))
    assert expected
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "lenet", "cnn"])
def test_weights_losses_and_momenta_are_those_of_clients_alone(name):
    side_by_side = models_of(name)
    alone = copy.deepcopy(side_by_side)
    settings = {"momentum": 0.9, "weight_decay": 1e-3}
    for _ in range(3):
        jobs, others = jobs_of(side_by_side, **settings), jobs_of(alone, **settings)
        if name == "cnn":
            jobs, others = first_two(jobs), first_two(others)
        losses = train_together(jobs)
        assert losses == pytest.approx([job.run() for job in others], rel=1e-5)
    assert_same_weights(side_by_side, alone)
    for job, other in zip(jobs, others, strict=True):
        assert_same_momenta(job.optimizer, other.optimizer)


def test_the_divergence_of_one_client_does_not_affect_the_others():
    models = models_of("mlp")
    jobs = jobs_of(models)
    broken = [(images * float("inf"), labels) for images, labels in batches_of(1)]
    jobs[1] = TrainJob(models[1], cross_entropy, jobs[1].optimizer, broken)
    losses = train_together(jobs)
    assert isinstance(losses[1], DivergedError)
    assert np.isfinite([losses[0], losses[2]]).all()
    for position in (0, 2):
        assert all(value.isfinite().all() for value in models[position].parameters())


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_predictions_do_not_depend_on_their_batches(name, monkeypatch):
    images = torch.randn(600, 1, 28, 28)
    models = [model.eval() for model in models_of(name)]
    with torch.inference_mode():
        whole = [model(images) for model in models]
    for size in (256, 7):
        for module in (loop, cohort):
            monkeypatch.setattr(module, "INFERENCE_BATCH", size)
        alone = [PredictJob(model, images).run() for model in models]
        together = list(cohort.predict_together([PredictJob(model, images) for model in models]))
        torch.testing.assert_close([*alone, *together], [*whole, *whole], rtol=0, atol=1e-5)


def test_jobs_that_run_alone():
    """Jobs in which one client's results would depend on the others in its cohort."""
    model = models_of("mlp")[0]
    plain = jobs_of([model])[0]
    assert cohort_key(plain) == cohort_key(jobs_of([copy.deepcopy(model)])[0])
    assert cohort_key(plain) != cohort_key(jobs_of([model], rate=0.1)[0])
    held = Proximal(parameters_of(model), 0.1)
    assert cohort_key(TrainJob(model, held, plain.optimizer, [])) != cohort_key(plain)
    adam = build_optimizer("adam", model.parameters(), 0.1)
    assert cohort_key(TrainJob(model, cross_entropy, adam, [])) is None
    half = nn.Sequential(nn.Linear(3, 2))
    foreign = build_optimizer("sgd", [*model.parameters(), *half.parameters()], 0.1)
    assert cohort_key(TrainJob(model, cross_entropy, foreign, [])) is None
    assert cohort_key(replace(plain, alternate=adam)) is None
    # Optimizers of different parts, or in other turns, take other steps.
    one, other = (build_optimizer("sgd", [p], 0.02) for p in list(model.parameters())[:2])
    kinds = [
        cohort_key(TrainJob(model, cross_entropy, optimizer, [], alternate=alternate))
        for optimizer, alternate in ((one, None), (other, None), (one, other), (other, one))
    ]
    assert None not in kinds and len({cohort_key(plain), *kinds}) == 5
    assert cohort_size(architecture("vgg11"), "on") == 1  # it has dropout
    assert cohort_size(architecture("lenet"), "auto") == 1
    assert cohort_size(architecture("lenet"), "on") > 1
    assert cohort_size(architecture("mlp"), "auto") > 1
    assert cohort_size(architecture("mlp"), "off") == 1


@pytest.mark.parametrize("takes_turns", [False, True])
def test_optimizers_of_parts_train_them_alone_and_in_turn(takes_turns):
    """Each client has another number of batches, and momenta of each part of its own."""
    models = models_of("mlp")
    alone = copy.deepcopy(models)

    def part_jobs(models):
        for client, model in enumerate(models):
            hidden, head = list(model.parameters())[:2], list(model.parameters())[2:]
            of_head = build_optimizer("sgd", head, 0.02, momentum=0.9)
            of_hidden = build_optimizer("sgd", hidden, 0.1, momentum=0.5, weight_decay=0.1)
            turns = {"alternate": of_hidden} if takes_turns else {}
            yield TrainJob(model, cross_entropy, of_head, batches_of(client), **turns)

    mine, theirs = list(part_jobs(models)), list(part_jobs(alone))
    assert len({cohort_key(job) for job in mine}) == 1
    before = parameters_of(models[0])
    assert train_together(mine) == pytest.approx([job.run() for job in theirs], rel=1e-5)
    moved = [not torch.equal(*pair) for pair in zip(models[0].parameters(), before, strict=True)]
    assert moved == [takes_turns, takes_turns, True, True]
    assert_same_weights(models, alone)
    for job, other in zip(mine, theirs, strict=True):
        for own, expected in zip(job.optimizers, other.optimizers, strict=True):
            assert_same_momenta(own, expected)
            assert len(own.state_dict()["state"]) == 2


@pytest.mark.parametrize(
    "tensors_of_loss",
    [
        lambda model, n: Proximal([p.detach() + 0.1 * n for p in model.parameters()], 0.5),
        lambda model, n: Linear([torch.full_like(p, 0.01 * n) for p in model.parameters()]),
        lambda model, n: TowardsPrototypes((torch.randn(10, 100), torch.ones(10)), 0.3),
    ],
)
def test_client_specific_tensors_of_a_loss_stay_with_the_client(tensors_of_loss):
    torch.manual_seed(0)
    models = models_of("mlp")
    alone = copy.deepcopy(models)
    losses = [tensors_of_loss(model, n) for n, model in enumerate(models)]
    mine, theirs = (
        [replace(job, loss=loss) for job, loss in zip(jobs_of(own), losses, strict=True)]
        for own in (models, alone)
    )
    assert len({cohort_key(job) for job in mine}) == 1
    assert train_together(mine) == pytest.approx([job.run() for job in theirs], rel=1e-5)
    assert_same_weights(models, alone)


# ---- The decomposed cross-entropy for cohorts equals PyTorch's, and needs no slow import


def samples():
    torch.manual_seed(0)
    return torch.randn(13, 10, requires_grad=True), torch.randint(0, 10, (13,))


@pytest.mark.parametrize("unlabeled", [[], [2, 5]])
def test_loss_and_gradient_are_those_of_pytorch(unlabeled):
    logits, labels = samples()
    labels[unlabeled] = -100
    expected = functional.cross_entropy(logits, labels)
    with BatchedFunctions():
        found = functional.cross_entropy(logits, labels)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "named",
    [
        {"reduction": "sum"},
        {"label_smoothing": 0.1},
        {"weight": torch.arange(10.0)},
        {"ignore_index": 3},
        {"target": torch.softmax(torch.randn(13, 10), dim=1)},
    ],
)
def test_any_other_cross_entropy_is_pytorchs(named):
    logits, labels = samples()
    named = {"target": labels, **named}
    expected = functional.cross_entropy(logits, **named)
    with BatchedFunctions():
        assert torch.equal(functional.cross_entropy(logits, **named), expected)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((torch.randn(6, 5), torch.randn(4, 5)), {}),
        ((torch.randn(6, 5), torch.randn(4, 5)), {"bias": torch.randn(4)}),
        ((torch.randn(2, 3, 5), torch.randn(4, 5)), {}),
        ((torch.randn(5), torch.randn(4, 5), torch.randn(4)), {}),
        ((torch.randn(6, 5), torch.randn(5)), {}),
        ((torch.randn(6, 5),), {"weight": torch.randn(4, 5)}),
        ((), {"input": torch.randn(6, 5), "weight": torch.randn(4, 5)}),
    ],
)
def test_a_linear_layer_equals_pytorchs_in_every_call_form(arguments, named):
    expected = functional.linear(*arguments, **named)
    with BatchedFunctions():
        found = functional.linear(*arguments, **named)
    torch.testing.assert_close(found, expected)
    assert found.view(-1).shape == (expected.numel(),)


# ---- Every network without random draws can be trained and evaluated in a cohort, as on a GPU


IMAGES = (3, 32, 32)
DEEP = {"darts", "resnet18", "shufflenetv2"}
"""Architectures that take a second or more."""

SMALL_SPACE = SupernetSettings(channels=2, cells=3, nodes=1)


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
    assert_same_weights(models, alone)
    images = batches[0][0]
    together = list(predict_together([PredictJob(model, images) for model in models]))
    expected = [PredictJob(model, images).run() for model in alone]
    torch.testing.assert_close(together, expected, rtol=1e-4, atol=1e-4)


# ---- Networks that multiply in bfloat16 ----------------------------------------------


@pytest.mark.parametrize("changes", [{"models": "mlp", "cohort": "on"}, {"models": "lenet,mlp"}])
def test_bf16_is_close_to_float32_but_not_equal(changes, small, tmp_path):
    losses = []
    for precision in ("float32", "bf16"):
        own = {"precision": precision, "models-dir": str(tmp_path / "models")}
        run = fedkd_flwr.run({**small, **changes, **own}, output_dir=tmp_path / precision)
        losses.append(run.rounds["train_loss_mean"])
    assert not np.array_equal(*losses)
    np.testing.assert_allclose(*losses, rtol=0.05)
    for tensor in load_file(tmp_path / "models" / "0.safetensors").values():
        assert tensor.dtype == np.float32


def test_class_means_have_all_digits():
    torch.manual_seed(0)
    predictions, labels = torch.randn(300, 10).softmax(dim=1), torch.arange(300) % 10
    with computing_in("bf16", "cpu"):
        means, _ = class_means(predictions, labels, 10)
    torch.testing.assert_close(means.sum(dim=1), torch.ones(10), rtol=0, atol=1e-5)
    torch.testing.assert_close(means[3], predictions[3::10].mean(dim=0))
