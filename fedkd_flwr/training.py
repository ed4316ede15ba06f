"""The local loop: batches, training, prediction, evaluation.

Data are tensors that already lie on the model's device, and a batch is an index slice:
nothing here loads, decodes or copies a data set.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from strategies.randomness import random_generator

INFERENCE_BATCH = 1024
"""Samples in a batch without gradients."""

BatchLoss = Callable[[nn.Module, Tensor], Tensor]
"""A loss of the model on the samples at some positions, (batch,) int64."""


@dataclass(frozen=True)
class Evaluation:
    """A model's result on one data set.

    Attributes
    ----------
    correct : int
        Samples classified right.
    total : int
        Samples.
    loss : float
        Mean cross-entropy over samples.
    """

    correct: int
    total: int
    loss: float


def batches(
    num_samples: int, batch_size: int, generator: np.random.Generator, device: str
) -> Iterator[Tensor]:
    """Yield the positions of one epoch's batches, in random order.

    A last batch of a single sample joins the batch before it, since batch normalization
    cannot train on one sample.

    Parameters
    ----------
    num_samples, batch_size : int
        Samples in the data set and in a batch.
    generator : numpy.random.Generator
        Draws the order.
    device : str
        Where the positions are to lie.

    Yields
    ------
    Tensor
        Shape (batch,), int64.
    """
    order = torch.from_numpy(generator.permutation(num_samples)).to(device)
    starts = list(range(0, num_samples, batch_size))
    if len(starts) > 1 and num_samples - starts[-1] == 1:
        starts.pop()
    for start, end in zip(starts, [*starts[1:], num_samples], strict=True):
        yield order[start:end]


def train_epochs(
    model: nn.Module,
    loss: BatchLoss,
    optimizer: torch.optim.Optimizer,
    num_samples: int,
    epochs: int,
    batch_size: int,
    generator: np.random.Generator,
) -> float:
    """Train a model for some epochs.

    Parameters
    ----------
    model : nn.Module
        Trained in place.
    loss : callable
        Loss of the model on the samples at given positions.
    optimizer : torch.optim.Optimizer
        Steps once a batch.
    num_samples, epochs, batch_size : int
        Extent of the training.
    generator : numpy.random.Generator
        Draws the order of the samples.

    Returns
    -------
    float
        Mean loss over the samples of the last epoch.
    """
    model.train()
    device = str(next(model.parameters()).device)
    total = torch.zeros((), device=device)
    for _ in range(epochs):
        total.zero_()
        for positions in batches(num_samples, batch_size, generator, device):
            optimizer.zero_grad(set_to_none=True)
            batch_loss = loss(model, positions)
            batch_loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += batch_loss.detach() * len(positions)
    return float(total / num_samples)


def cross_entropy_on(images: Tensor, labels: Tensor) -> BatchLoss:
    """Return the mean cross-entropy on the samples of a labeled data set."""

    def loss(model: nn.Module, positions: Tensor) -> Tensor:
        return functional.cross_entropy(model(images[positions]), labels[positions])

    return loss


@torch.inference_mode()
def predict_logits(model: nn.Module, images: Tensor) -> Tensor:
    """Return a model's logits on images.

    Parameters
    ----------
    model : nn.Module
        Left in evaluation mode.
    images : Tensor
        Shape (P, channels, height, width).

    Returns
    -------
    Tensor
        Shape (P, K), float32.
    """
    model.eval()
    return torch.cat([model(chunk) for chunk in images.split(INFERENCE_BATCH)]).float()


def predict(model: nn.Module, images: Tensor, temperature: float) -> Tensor:
    """Return soft predictions ``softmax(z / T)``, shape (P, K)."""
    return functional.softmax(predict_logits(model, images) / temperature, dim=1)


def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> Evaluation:
    """Count a model's correct answers and mean loss, sample by sample.

    Parameters
    ----------
    model : nn.Module
        Left in evaluation mode.
    images, labels : Tensor
        Shapes (n, channels, height, width) and (n,), n at least 1.
    """
    logits = predict_logits(model, images)
    correct = int((logits.argmax(dim=1) == labels).sum())
    loss = float(functional.cross_entropy(logits, labels))
    return Evaluation(correct, len(labels), loss)


@contextmanager
def seeded(device: str, seed: int, purpose: str, *indices: int) -> Iterator[None]:
    """Make PyTorch's own draws (initial weights, dropout) a function of seed and purpose.

    The process-wide generator is put back afterwards, so that clients that share a
    process do not feel each other.
    """
    devices = [torch.device(device)] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(int(random_generator(seed, purpose, *indices).integers(2**62)))
        yield
