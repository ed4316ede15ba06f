"""The local loop: batches, training, prediction, evaluation.

Data are tensors that already lie on the model's device, and a batch is an index slice:
nothing here loads, decodes or copies a data set.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from strategies.core.randomness import random_generator
from strategies.core.replies import LARGEST_LOSS

INFERENCE_BATCH = 256
"""Samples in a prediction's batch: the heap does not keep memory for a convolution's outputs of
many more, and the system makes its pages anew. Logits do not depend on it."""

STATISTICS_BATCH = 1024
"""Samples in a batch over which statistics of batch normalization are taken; these depend on it."""

RUNNING_STATISTICS = ("running_mean", "running_var")
"""How the names of buffers end that a training moves. Others may be infinite, as masks are."""

Batch = tuple[Tensor, ...]
"""Tensors on the device that a loss takes; the first has one row a sample."""

Loss = Callable[..., Tensor]
"""``loss(model, *batch)``, the mean loss of a model on a batch; see `training.losses`."""


class DivergedError(RuntimeError):
    """A training whose loss or weights are no numbers any more."""


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

    def numbers(self, prefix: str = "") -> dict[str, float]:
        """Return the results by name; a loss that no mean could take stays out."""
        counts: dict[str, float] = {
            f"{prefix}correct": self.correct,
            f"{prefix}total": self.total,
        }
        if not abs(self.loss) <= LARGEST_LOSS:
            return counts
        return {**counts, f"{prefix}loss": self.loss}


def epoch_batches(
    num_samples: int, batch_size: int, epochs: int, generator: np.random.Generator
) -> Iterator[Tensor]:
    """Yield the positions of batches that go through the data epoch by epoch, shuffled.

    A last batch of a single sample joins the batch before it, since batch normalization
    cannot train on one sample.

    Parameters
    ----------
    num_samples, batch_size, epochs : int
        Samples in the data set and in a batch, and how often each sample comes.
    generator : numpy.random.Generator
        Draws the order.

    Yields
    ------
    Tensor
        Shape (batch,), int64.
    """
    starts = list(range(0, num_samples, batch_size))
    if len(starts) > 1 and num_samples - starts[-1] == 1:
        starts.pop()
    for _ in range(epochs):
        order = torch.from_numpy(generator.permutation(num_samples))
        for start, end in zip(starts, [*starts[1:], num_samples], strict=True):
            yield order[start:end]


def random_batches(
    num_samples: int, batch_size: int, generator: np.random.Generator
) -> Iterator[Tensor]:
    """Yield, without end, the positions of batches drawn uniformly, each without repetition.

    Parameters
    ----------
    num_samples, batch_size : int
        Samples in the data set and in a batch (all where there are fewer).
    generator : numpy.random.Generator
        Draws the positions.

    Yields
    ------
    Tensor
        Shape (min(batch_size, num_samples),), int64.
    """
    size = min(batch_size, num_samples)
    while True:
        yield torch.from_numpy(generator.choice(num_samples, size, replace=False))


def gathered(positions: Iterable[Tensor], *columns: Tensor) -> Iterator[Batch]:
    """Turn positions into batches: the rows of some columns at those positions.

    Parameters
    ----------
    positions : iterable of Tensor
        Positions of each batch, (batch,) int64.
    *columns : Tensor
        Images, labels, teachers, …; one row a sample.
    """
    for chosen in positions:
        chosen = chosen.to(columns[0].device)
        # Whole rows are copied several times as fast as an index gathers them.
        yield tuple(column.index_select(0, chosen) for column in columns)


def train_on(
    model: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
) -> float:
    """Take one optimizer step a batch.

    Parameters
    ----------
    model : nn.Module
        Trained in place.
    loss : callable
        Mean loss of the model on a batch.
    optimizer : torch.optim.Optimizer
        Steps once a batch.
    batches : iterable of tuple of Tensor
        On the model's device.

    Returns
    -------
    float
        Mean loss over all samples seen.

    Raises
    ------
    DivergedError
        If that, or a weight in the end, is no finite number.
    """
    model.train()
    device = next(model.parameters()).device
    total, seen = torch.zeros((), device=device), 0
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        batch_loss = loss(model, *batch)
        batch_loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        # Summed on the device: reading it here would wait for every batch.
        total += batch_loss.detach() * len(batch[0])
        seen += len(batch[0])
    mean_loss = float(total) / max(seen, 1)
    require_finite(mean_loss)
    require_finite_weights(sum_of_trained(model))
    return mean_loss


@torch.no_grad()
def sum_of_trained(model: nn.Module) -> float:
    """Return the sum of a model's weights and running statistics, for `require_finite_weights`."""
    moved = [buffer for name, buffer in model.named_buffers() if name.endswith(RUNNING_STATISTICS)]
    return float(torch.stack([tensor.sum() for tensor in (*model.parameters(), *moved)]).sum())


def require_finite(loss: float) -> None:
    """Refuse a training that has diverged, so that a client keeps the model it had before.

    Raises
    ------
    DivergedError
        If the loss is no finite number.
    """
    if not math.isfinite(loss):
        raise DivergedError(f"training diverged (loss {loss}); lower the learning-rate")


def require_finite_weights(total: float) -> None:
    """Refuse a training that has diverged in its last step, which no loss has seen.

    Parameters
    ----------
    total : float
        Sum of weights and running statistics, which is finite where all of them are.

    Raises
    ------
    DivergedError
        If the sum is no finite number.
    """
    if not math.isfinite(total):
        raise DivergedError("training diverged (its model is not finite); lower the learning-rate")


@torch.no_grad()
def refresh_statistics(model: nn.Module, images: Tensor) -> None:
    """Set the running statistics of batch normalization to those of some images.

    The running averages of training lag behind the weights, and in a supernet, where every
    operation is normalized, the lag adds up: a network that is right on every batch can be no
    better than chance in evaluation mode. Averaged over clients they fit no client at all, for
    the activations of a mean of networks spread less than theirs.

    Parameters
    ----------
    model : nn.Module
        Its weights stay as they are, and all of it does that has no batch normalization; left
        in evaluation mode.
    images : Tensor
        Shape (n, channels, height, width). A single one has no variance to measure and changes
        nothing.
    """
    layers = [
        layer
        for layer in model.modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats
    ]
    if not layers or len(images) < 2:
        return
    momenta = [layer.momentum for layer in layers]
    model.eval()  # nothing is dropped out while activations are measured
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the plain mean over batches
        layer.train()
    for chunk in torch.tensor_split(images, math.ceil(len(images) / STATISTICS_BATCH)):
        model(chunk)
    model.eval()
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum


@contextmanager
def statistics_of(model: nn.Module, images: Tensor) -> Iterator[None]:
    """Let batch normalization have the statistics of some images, and afterwards its own again.

    Parameters
    ----------
    model : nn.Module
        Left in evaluation mode, with the buffers that it had.
    images : Tensor
        Shape (n, channels, height, width).
    """
    own = [buffer.clone() for buffer in model.buffers()]
    try:
        refresh_statistics(model, images)
        yield
    finally:
        for buffer, value in zip(model.buffers(), own, strict=True):
            buffer.copy_(value)


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
    return torch.cat([model(chunk) for chunk in torch.split(images, INFERENCE_BATCH)]).float()


def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> Evaluation:
    """Count a model's correct answers and mean loss, sample by sample.

    Parameters
    ----------
    model : nn.Module
        Left in evaluation mode.
    images, labels : Tensor
        Shapes (n, channels, height, width) and (n,), n at least 1.
    """
    return count_correct(predict_logits(model, images), labels)


def count_correct(logits: Tensor, labels: Tensor) -> Evaluation:
    """Count correct answers and the mean loss of logits (n, K) on labels (n,)."""
    correct = int((logits.argmax(dim=1) == labels).sum())
    loss = float(functional.cross_entropy(logits, labels))
    return Evaluation(correct, len(labels), loss)


def draws_while_training(model: nn.Module) -> bool:
    """Return whether a model takes random numbers from PyTorch when it is trained."""
    return any(isinstance(layer, nn.modules.dropout._DropoutNd) for layer in model.modules())


def computing_in(precision: str, device: str) -> AbstractContextManager[None]:
    """Make networks multiply in another precision than their weights have.

    Parameters
    ----------
    precision : str
        ``float32`` or ``bf16``, as in the run config.
    device : str
        Where the networks lie.
    """
    if precision == "float32":
        return nullcontext()
    # Copies of weights kept from one step to the next would not have moved with the weights.
    return torch.autocast(torch.device(device).type, torch.bfloat16, cache_enabled=False)


def generators_of(device: str) -> list[torch.Generator]:
    """Return the process-wide generators that PyTorch draws from on a device: CPU's, and its."""
    if not device.startswith("cuda"):
        return [torch.default_generator]
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return [
        torch.default_generator,
        torch.cuda.default_generators[torch.device(device).index or 0],
    ]


@contextmanager
def seeded(device: str, seed: int, purpose: str, *indices: int) -> Iterator[None]:
    """Make PyTorch's own draws (initial weights, dropout) a function of seed and purpose.

    The process-wide generators are put back afterwards, so that clients that share a process
    do not feel each other. Only those of the CPU and of the device are touched: PyTorch's own
    `manual_seed` visits every kind of accelerator that there might be.
    """
    generators = generators_of(device)
    number = int(random_generator(seed, purpose, *indices).integers(2**62))
    before = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(number)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
