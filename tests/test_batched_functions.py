"""The decomposed cross-entropy for cohorts equals PyTorch's, and needs no slow import."""

import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from fedkd_flwr.training.batched_functions import BatchedFunctions

TOGETHER = """
import sys
import torch
from fedkd_flwr.models.model_pool import Architecture
from fedkd_flwr.models.settings import ModelSettings
from fedkd_flwr.training.cohort import train_together
from fedkd_flwr.training.jobs import TrainJob
from fedkd_flwr.training.losses import cross_entropy
from fedkd_flwr.training.optimizers import SGD

mlp = Architecture("mlp", (1, 28, 28), 10, ModelSettings().search_space, "cpu")
batch = torch.randn(8, 1, 28, 28), torch.randint(0, 10, (8,))
models = [mlp.build() for _ in range(2)]
jobs = [TrainJob(m, cross_entropy, SGD(m.parameters(), 0.01), [batch]) for m in models]
print(train_together(jobs)[0] > 0, "sympy" in sys.modules)
"""


def samples():
    torch.manual_seed(0)
    return torch.randn(13, 10, requires_grad=True), torch.randint(0, 10, (13,))


def test_loss_and_gradient_are_those_of_pytorch():
    logits, labels = samples()
    expected = functional.cross_entropy(logits, labels)
    with BatchedFunctions():
        found = functional.cross_entropy(logits, labels)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (found, expected)]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("named", [{}, {"reduction": "mean"}])
def test_the_plain_cross_entropy_is_decomposed(monkeypatch, named):
    name = "fedkd_flwr.training.batched_functions.mean_cross_entropy"
    monkeypatch.setattr(name, lambda logits, labels: "taken apart")
    with BatchedFunctions():
        assert functional.cross_entropy(*samples(), **named) == "taken apart"


@pytest.mark.parametrize(
    "named",
    [
        {"reduction": "sum"},
        {"label_smoothing": 0.1},
        {"weight": torch.arange(10.0)},
        {"ignore_index": 3},
    ],
)
def test_any_other_cross_entropy_is_pytorchs(named):
    logits, labels = samples()
    expected = functional.cross_entropy(logits, labels, **named)
    with BatchedFunctions():
        assert torch.equal(functional.cross_entropy(logits, labels, **named), expected)


def test_labels_that_are_distributions_are_pytorchs():
    logits, _ = samples()
    teacher = torch.softmax(torch.randn(13, 10), dim=1)
    expected = functional.cross_entropy(logits, teacher)
    with BatchedFunctions():
        assert torch.equal(functional.cross_entropy(logits, teacher), expected)


def test_cohorts_do_not_import_symbolic_mathematics():
    command = [sys.executable, "-c", TOGETHER]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert answer.stdout.split() == ["True", "False"]


def test_samples_without_a_label_are_ignored():
    logits, labels = samples()
    labels[[2, 5]] = -100
    expected = functional.cross_entropy(logits, labels)
    with BatchedFunctions():
        found = functional.cross_entropy(logits, labels)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=0)


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
