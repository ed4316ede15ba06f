"""The local loop: batches, training, prediction, evaluation.

Data are tensors on the model's device, and a batch is a slice of them. Nothing in this module
loads, decodes or copies a data set.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.custom_objects.importing import told
from fedkd_flwr.models.torch_internals import tracking_batch_norms
from fedkd_flwr.models.vectors import copied_state
from strategies.core.randomness import random_generator

INFERENCE_BATCH = 256
"""Samples in a batch of predictions. With many more, each convolution's output takes new pages from
the system. Logits do not depend on it."""

STATISTICS_BATCH = 1024
"""Samples in a batch that measures statistics of batch normalization. They depend on it."""

RUNNING_STATISTICS = ("running_mean", "running_var")
"""Name endings of buffers that training changes. Other buffers, such as masks, may be infinite."""

Batch = tuple[Tensor, ...]
"""Tensors on the device that a loss takes. The first has one row per sample."""

Loss = Callable[..., Tensor]
"""``loss(model, *batch)``, the mean loss of a model on a batch; see `training.losses`."""


Gradients = Callable[[nn.Module, Loss, Batch, Sequence[nn.Parameter]], Tensor]
"""Sets the gradients of some parameters of a model for a batch, and returns its mean loss."""


class DivergedError(RuntimeError):
    """A training whose loss or weights are no longer finite."""


@dataclass(frozen=True)
class Evaluation:
    """A model's result on one data set.

    The loss is the mean cross-entropy over samples.
    """

    correct: int
    total: int
    loss: float

    @property
    def rank(self) -> tuple[int, float]:
        """Correct predictions and minus the loss, by which a model is chosen: higher is better."""
        return self.correct, -self.loss


def batch_starts(num_samples: int, batch_size: int) -> list[int]:
    """Return the first position of each batch of an epoch.

    A last batch of one sample is merged with the batch before it, because batch normalization
    cannot train on one sample.
    """
    starts = list(range(0, num_samples, batch_size))
    return starts[:-1] if len(starts) > 1 and num_samples - starts[-1] == 1 else starts


def epoch_batches(
    num_samples: int, batch_size: int, epochs: int, generator: np.random.Generator
) -> Iterator[Tensor]:
    """Yield the positions of shuffled batches, epoch by epoch.

    Shape (batch,), int64.
    """
    starts = batch_starts(num_samples, batch_size)
    for _ in range(epochs):
        order = torch.from_numpy(generator.permutation(num_samples))
        for start, end in zip(starts, [*starts[1:], num_samples], strict=True):
            yield order[start:end]


def random_batches(
    num_samples: int, batch_size: int, generator: np.random.Generator
) -> Iterator[Tensor]:
    """Yield endless positions of uniformly drawn batches, each without repetition.

    Shape (min(batch_size, num_samples),), int64.
    """
    size = min(batch_size, num_samples)
    while True:
        yield torch.from_numpy(generator.choice(num_samples, size, replace=False))


def joined(positions: Iterable[Tensor], smallest: int) -> Iterator[Tensor]:
    """Yield batches in which at least some number of different samples are.

    A batch with fewer is joined with those after it, and the last with the one before it. If all
    of them together have fewer, none is left.

    Parameters
    ----------
    positions : iterable of Tensor
        Positions of each batch, (batch,) int64.
    smallest : int
        Number of different samples.
    """
    ready, short = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    for chosen in positions:
        short = torch.cat([short, chosen])
        if len(set(short.tolist())) >= smallest:
            if len(ready):
                yield ready
            ready, short = short, short[:0]
    if len(ready):
        yield torch.cat([ready, short])


def gathered(positions: Iterable[Tensor], *columns: Tensor) -> Iterator[Batch]:
    """Yield the batches at some positions: the rows of each column.

    Columns are images, labels, teachers, …, with one row per sample.
    """
    for chosen in positions:
        chosen = chosen.to(columns[0].device)
        # Copying whole rows is several times as fast as gathering them by an index.
        yield tuple(column.index_select(0, chosen) for column in columns)


def backpropagate(
    model: nn.Module, loss: Loss, batch: Batch, parameters: Sequence[nn.Parameter]
) -> Tensor:
    """Set some parameters' gradients of the mean loss of a batch, and return that loss."""
    batch_loss = required_loss(loss(model, *batch))
    require_gradient(batch_loss)
    batch_loss.backward(inputs=parameters)  # type: ignore[no-untyped-call]
    return batch_loss


def required_loss(loss: object) -> Tensor:
    """Return what a loss function returned, after checking that it is one number.

    Raises `TypeError` with what to return instead.
    """
    if isinstance(loss, Tensor) and not loss.dim():
        return loss
    shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
    raise TypeError(
        f"the loss returned a {type(loss).__name__}{shape}; return the mean over the batch, a "
        "tensor without dimensions"
    )


def require_gradient(loss: Tensor) -> None:
    """Refuse a loss that no parameter enters. Raises `TypeError`."""
    if not loss.requires_grad:
        raise TypeError(
            "the loss has no gradient: it should not be detached, nor computed under torch.no_grad"
        )


def try_step(model: nn.Module, batch: Batch, part: str, optimizer: torch.optim.Optimizer) -> float:
    """Take one optimizer step on the cross-entropy of a batch, and return the loss.

    Parameters
    ----------
    model : nn.Module
        Trained in place.
    batch : tuple of Tensor
        Images (n, ...) and labels (n,).
    part : str
        What the optimizer trains, for messages: ``model``, ``head`` or ``body``.
    optimizer : torch.optim.Optimizer
        Over parameters of the model.

    Raises
    ------
    ValueError
        If nothing would be trained, or the step fails; in one sentence.
    """
    images, labels = batch
    parameters = trained_by(optimizer)
    if not parameters:
        raise ValueError(
            f"nothing is left to train: all parameters of the {part} have requires_grad = False"
        )
    try:
        loss = functional.cross_entropy(model.train()(images), labels)
        if loss.requires_grad:
            loss.backward(inputs=parameters)  # type: ignore[no-untyped-call]
            optimizer.step()
    # A custom network may raise anything.
    except Exception as error:
        if len(images) == 1 and "more than 1 value per channel" in str(error):
            raise ValueError(
                "batch normalization cannot train on a batch of one sample: set batch-size (and "
                "public-batch-size) to 2 or more, and give each client at least two samples to "
                "train"
            ) from error
        raise ValueError(
            f"a training step on {len(images)} samples fails: {told(error)}"
        ) from error
    if not loss.requires_grad:
        raise ValueError(
            "its output has no gradient: forward should neither detach it nor run under "
            "torch.no_grad"
        )
    return float(loss.detach())


def trained_by(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters that an optimizer trains."""
    groups = optimizer.param_groups
    return [p for group in groups for p in group["params"] if p.requires_grad]


def train_on(
    model: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    gradients: Gradients = backpropagate,
    alternate: torch.optim.Optimizer | None = None,
) -> float:
    """Take one optimizer step per batch.

    Parameters
    ----------
    model : nn.Module
        Trained in place.
    loss : callable
        Mean loss of the model on a batch.
    optimizer : torch.optim.Optimizer
        Takes one step per batch.
    batches : iterable of tuple of Tensor
        On the model's device.
    gradients : callable
        What sets the gradients of a batch.
    alternate : torch.optim.Optimizer, optional
        Takes the step on the first batch and then on every other one, in place of `optimizer`.

    Returns
    -------
    float
        Mean loss over all samples on which `optimizer` took its steps.

    Raises
    ------
    DivergedError
        If the mean loss, or a weight at the end, is not finite.
    """
    model.train()
    device = next(model.parameters()).device
    total, seen, first = torch.zeros((), device=device), 0, None
    turns = [(turn, trained_by(turn)) for turn in (alternate, optimizer) if turn]
    for batch, (turn, parameters) in zip(batches, cycle(turns), strict=False):
        turn.zero_grad(set_to_none=True)
        batch_loss = gradients(model, loss, batch, parameters)
        turn.step()
        first = batch_loss.detach() if first is None else first
        if turn is optimizer:
            # Summed on the device, because reading it here would wait for every batch.
            total += batch_loss.detach() * len(batch[0])
            seen += len(batch[0])
    mean_loss = float(total) / max(seen, 1)
    require_finite(mean_loss, first)
    require_finite_weights(sum_of_trained(model))
    return mean_loss


@torch.no_grad()
def sum_of_trained(model: nn.Module) -> float:
    """Return the sum of a model's weights and running statistics, for `require_finite_weights`."""
    moved = [buffer for name, buffer in model.named_buffers() if name.endswith(RUNNING_STATISTICS)]
    return float(torch.stack([tensor.sum() for tensor in (*model.parameters(), *moved)]).sum())


def require_finite(loss: float, first: Tensor | None = None) -> None:
    """Refuse a training that has diverged. The client then keeps its previous model.

    `first` is the loss of the first batch. Raises `DivergedError` if the loss is not finite.
    """
    if not math.isfinite(loss):
        if first is not None and not first.isfinite():
            raise DivergedError(
                f"the loss of the first batch is {first.item()}, before any step; look at the loss "
                "function, the model and the data"
            )
        raise DivergedError(f"training diverged (loss {loss}); lower the learning-rate")


def require_finite_weights(total: float) -> None:
    """Refuse a training that diverged in its last step, after the last loss.

    The total, of weights and running statistics, is finite if all of them are. Raises
    `DivergedError` if the sum is not finite.
    """
    if not math.isfinite(total):
        raise DivergedError("training diverged (its model is not finite); lower the learning-rate")


@torch.no_grad()
def refresh_statistics(model: nn.Module, images: Tensor) -> None:
    """Set the running statistics of batch normalization to those of some images.

    The running averages of training lag behind the weights. In a supernet every operation is
    normalized, and the lags add up: a network that is correct on every batch can be at chance level
    in evaluation mode. Averages over clients fit no client, because the activations of an averaged
    network vary less than those of the clients' networks. The model is left in evaluation mode, its
    weights unchanged. A single image has no variance and changes nothing.
    """
    layers = tracking_batch_norms(model)
    if not layers or len(images) < 2:
        return
    momenta = [layer.momentum for layer in layers]
    model.eval()  # no dropout while activations are measured
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
    """Use the statistics of some images in batch normalization, and restore them afterwards.

    The model is left in evaluation mode, with its previous buffers.
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
    """Return a model's number of correct predictions and its mean loss over samples.

    Images are (n, channels, height, width), labels (n,), n at least 1. The model is left in
    evaluation mode.
    """
    return count_correct(predict_logits(model, images), labels)


def count_correct(logits: Tensor, labels: Tensor) -> Evaluation:
    """Return the correct predictions and the mean loss of logits (n, K) on labels (n,)."""
    correct = int((logits.argmax(dim=1) == labels).sum())
    loss = float(functional.cross_entropy(logits, labels))
    return Evaluation(correct, len(labels), loss)


def computing_in(precision: str, device: str) -> AbstractContextManager[None]:
    """Run networks in a precision that may differ from that of their weights.

    ``float32`` or ``bf16``, as in the run config.
    """
    if precision == "float32":
        return nullcontext()
    # Weight copies cached by autocast would be outdated after a step.
    return torch.autocast(torch.device(device).type, torch.bfloat16, cache_enabled=False)


def generators_of(device: str) -> list[torch.Generator]:
    """Return PyTorch's process-wide generators for a device: the CPU's and the device's own."""
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

    The process-wide generators are restored afterwards, so that clients that share a process do
    not affect each other. Only the generators of the CPU and the device are changed. PyTorch's
    `manual_seed` would seed every kind of accelerator.
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


def keep_best_epoch(
    model: nn.Module,
    train_epoch: Callable[[], None],
    epochs: int,
    rank: Callable[[], tuple[float, ...]],
) -> None:
    """Train for some epochs, and leave the model as it was after the best of them.

    The model without any epoch counts too, so no training can lower its rank. Of equals the
    earliest is left. A training that diverges ends there. Higher ranks are better.
    """
    best, weights = rank(), copied_state(model)
    for _ in range(epochs):
        try:
            train_epoch()
        except DivergedError:
            break
        now = rank()
        if now > best:
            best, weights = now, copied_state(model)
    model.load_state_dict(weights)
