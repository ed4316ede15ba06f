"""The local loop: optimizers, batches, training, prediction, evaluation."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import cycle
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.custom_objects.importing import told
from fedkd_flwr.models.torch_internals import tracking_batch_norms
from fedkd_flwr.models.vectors import copied_state
from strategies.core.randomness import random_generator

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)

TELL_THE_COMPILER = ("add_param_group", "load_state_dict", "state_dict", "step", "zero_grad")
"""Methods of an optimizer that PyTorch wraps for its compiler."""


def _uncompiled(kind: type[Kind]) -> type[Kind]:
    """Return an optimizer class without those wrappers. Its steps are the same bit for bit.

    PyTorch imports its compiler when a wrapper is first used, which takes as long as importing
    PyTorch itself. A node would pay that with every message, and nothing here is compiled.
    """
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in TELL_THE_COMPILER}
    # The wrapper of `step` also disables gradients.
    methods["step"] = torch.no_grad()(methods["step"])
    return type(kind.__name__, (kind,), methods)


SGD = _uncompiled(torch.optim.SGD)
Adam = _uncompiled(torch.optim.Adam)
AdamW = _uncompiled(torch.optim.AdamW)


def build_optimizer(
    name: str,
    parameters: Iterable[nn.Parameter],
    rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Build an optimizer by name; momentum is for ``sgd``, and decay decoupled in ``adamw``."""
    if name == "adam":
        return Adam(parameters, rate, weight_decay=weight_decay)
    if name == "adamw":
        return AdamW(parameters, rate, weight_decay=weight_decay)
    return SGD(parameters, rate, momentum, weight_decay=weight_decay)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "step": lambda progress: 1.0 if progress < 0.5 else 0.1 if progress < 0.75 else 0.01,
}
"""Factors of the learning rate, as functions of the share of finished rounds in [0, 1)."""


def scheduled_rate(rate: float, schedule: str, server_round: int, num_rounds: int) -> float:
    """Return the learning rate of a round, counted from 1, by a name of `SCHEDULES`."""
    return rate * SCHEDULES[schedule]((server_round - 1) / num_rounds)


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
    """A model's correct predictions on one data set, and the mean cross-entropy."""

    correct: int
    total: int
    loss: float

    @property
    def rank(self) -> tuple[int, float]:
        """Correct predictions and minus the loss, by which a model is chosen: higher is better."""
        return self.correct, -self.loss


def batch_starts(num_samples: int, batch_size: int) -> list[int]:
    """Return the first position of each batch of an epoch; one last sample joins a batch.

    Batch normalization cannot train on one sample.
    """
    starts = list(range(0, num_samples, batch_size))
    return starts[:-1] if len(starts) > 1 and num_samples - starts[-1] == 1 else starts


def epoch_batches(
    num_samples: int, batch_size: int, epochs: int, generator: np.random.Generator
) -> Iterator[Tensor]:
    """Yield the positions of shuffled batches, (batch,), epoch by epoch."""
    starts = batch_starts(num_samples, batch_size)
    for _ in range(epochs):
        order = torch.from_numpy(generator.permutation(num_samples))
        for start, end in zip(starts, [*starts[1:], num_samples], strict=True):
            yield order[start:end]


def random_batches(
    num_samples: int, batch_size: int, generator: np.random.Generator
) -> Iterator[Tensor]:
    """Yield endless positions of uniformly drawn batches, each without repetition."""
    size = min(batch_size, num_samples)
    while True:
        yield torch.from_numpy(generator.choice(num_samples, size, replace=False))


def joined(positions: Iterable[Tensor], smallest: int) -> Iterator[Tensor]:
    """Yield batches of positions in which at least `smallest` different samples are.

    A batch with fewer is joined with those after it, and the last with the one before it.
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
    """Yield the rows of each column (images, labels, teachers, …) at some positions."""
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
    """Return what a loss function returned, after checking that it is one number."""
    if isinstance(loss, Tensor) and not loss.dim():
        return loss
    shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
    raise TypeError(
        f"the loss returned a {type(loss).__name__}{shape}; return the mean over the batch, a "
        "tensor without dimensions"
    )


def require_gradient(loss: Tensor) -> None:
    """Refuse a loss that no parameter enters."""
    if not loss.requires_grad:
        raise TypeError(
            "the loss has no gradient: it should not be detached, nor computed under torch.no_grad"
        )


def try_step(model: nn.Module, batch: Batch, part: str, optimizer: torch.optim.Optimizer) -> float:
    """Take one step on the cross-entropy of a batch, and return the loss; refuse failures."""
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
    """Take one optimizer step per batch as of `TrainJob`; return the mean loss.

    Raises `DivergedError` if it, or a weight at the end, is not finite.
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
    """Refuse a training that has diverged; `first` is the loss of its first batch."""
    if not math.isfinite(loss):
        if first is not None and not first.isfinite():
            raise DivergedError(
                f"the loss of the first batch is {first.item()}, before any step; look at the loss "
                "function, the model and the data"
            )
        raise DivergedError(f"training diverged (loss {loss}); lower the learning-rate")


def require_finite_weights(total: float) -> None:
    """Refuse a training that diverged in its last step, after the last loss, by a sum."""
    if not math.isfinite(total):
        raise DivergedError("training diverged (its model is not finite); lower the learning-rate")


@torch.no_grad()
def refresh_statistics(model: nn.Module, images: Tensor) -> None:
    """Set the running statistics of batch normalization to those of some images.

    The running averages of training lag behind the weights: in a supernet, where every operation is
    normalized, the lags add up. Averages over clients fit no client. The model is left in
    evaluation mode. A single image has no variance and changes nothing.
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
    """Use the statistics of some images in batch normalization, and restore them afterwards."""
    own = [buffer.clone() for buffer in model.buffers()]
    try:
        refresh_statistics(model, images)
        yield
    finally:
        for buffer, value in zip(model.buffers(), own, strict=True):
            buffer.copy_(value)


@torch.inference_mode()
def predict_logits(model: nn.Module, images: Tensor) -> Tensor:
    """Return a model's logits (P, K), float32, on images; it is left in evaluation mode."""
    model.eval()
    return torch.cat([model(chunk) for chunk in torch.split(images, INFERENCE_BATCH)]).float()


def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> Evaluation:
    """Return a model's correct predictions and mean loss; it is left in evaluation mode."""
    return count_correct(predict_logits(model, images), labels)


def count_correct(logits: Tensor, labels: Tensor) -> Evaluation:
    """Return the correct predictions and the mean loss of logits (n, K) on labels (n,)."""
    correct = int((logits.argmax(dim=1) == labels).sum())
    loss = float(functional.cross_entropy(logits, labels))
    return Evaluation(correct, len(labels), loss)


def computing_in(precision: str, device: str) -> AbstractContextManager[None]:
    """Run networks in a precision that may differ from that of their weights."""
    if precision == "float32":
        return nullcontext()
    # Weight copies cached by autocast would be outdated after a step.
    return torch.autocast(torch.device(device).type, torch.bfloat16, cache_enabled=False)


def generators_of(device: str) -> list[torch.Generator]:
    """Return PyTorch's process-wide generators for a device: the CPU's and the device's own."""
    if not device.startswith("cuda"):
        return [torch.default_generator]
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return [torch.default_generator, torch.cuda.default_generators[torch.device(device).index or 0]]


@contextmanager
def seeded(device: str, seed: int, purpose: str, *indices: int) -> Iterator[None]:
    """Make PyTorch's own draws (initial weights, dropout) a function of seed and purpose.

    The generators of the CPU and the device are restored afterwards, so that clients that share a
    process do not affect each other.
    """
    generators = generators_of(device)
    number = int(random_generator(seed, purpose, *indices).integers(2**62))
    with torch.random.fork_rng([torch.device(device).index or 0] if generators[1:] else []):
        for generator in generators:
            generator.manual_seed(number)
        yield


def keep_best_epoch(
    model: nn.Module,
    train_epoch: Callable[[], None],
    epochs: int,
    rank: Callable[[], tuple[float, ...]],
) -> None:
    """Train for some epochs, and leave the model as it was before or after the best of them.

    Of equals the earliest is left. A training that diverges ends there.
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
