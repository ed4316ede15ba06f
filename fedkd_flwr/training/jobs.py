"""The jobs of a client's training, and how clients of a cohort are suspended at them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor, nn

from fedkd_flwr.models.vectors import copied_state
from fedkd_flwr.training.loop import (
    Batch,
    DivergedError,
    Gradients,
    Loss,
    backpropagate,
    generators_of,
    predict_logits,
    train_on,
)


@dataclass(frozen=True, eq=False)
class TrainJob:
    """Optimizer steps on batches. The result is the mean loss over the samples of `optimizer`."""

    model: nn.Module
    """Trained in place."""
    loss: Loss
    """Mean loss of the model on a batch."""
    optimizer: torch.optim.Optimizer
    """Over parameters of the model; steps once a batch. The other parameters do not change."""
    batches: Iterable[Batch]
    """On the model's device."""
    gradients: Gradients = backpropagate
    """What sets the gradients of a batch. Jobs with other gradients than backpropagation's run
    alone."""
    alternate: torch.optim.Optimizer | None = None
    """Over other parameters of the model. It takes the step on the first batch and then on every
    other one, instead of `optimizer`."""

    def __post_init__(self) -> None:
        """Refuse a loss of PyTorch itself, which takes logits."""
        module = getattr(self.loss, "__module__", None) or ""
        if isinstance(self.loss, nn.Module) or module.startswith("torch."):
            name = getattr(self.loss, "__name__", type(self.loss).__name__)
            raise TypeError(
                f"the loss {name} takes logits, and a loss of a training takes the model and the "
                f"batch: lambda model, images, labels: {name}(model(images), labels)"
            )

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers in the order of their turns, `optimizer` last."""
        return [optimizer for optimizer in (self.alternate, self.optimizer) if optimizer]

    def run(self) -> float:
        """Train."""
        how = self.gradients, self.alternate
        return train_on(self.model, self.loss, self.optimizer, self.batches, *how)


@dataclass(frozen=True, eq=False)
class PredictJob:
    """A model's logits (P, K) float32 on images (P, …); it is left in evaluation mode."""

    model: nn.Module
    images: Tensor

    def run(self) -> Tensor:
        """Predict."""
        return predict_logits(self.model, self.images)


Job = TrainJob | PredictJob  # what a client may do


class StepCounter:
    """Counts a client's gradient steps: one for each batch of jobs, and those outside of them."""

    def __init__(self) -> None:
        self.taken = 0

    def counted(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches unchanged, and count a step for each."""
        for batch in batches:
            self.taken += 1
            yield batch


@contextmanager
def undone_if_it_diverges(
    model: nn.Module,
    optimizers: Iterable[torch.optim.Optimizer],
    report: Callable[[DivergedError], None],
) -> Iterator[None]:
    """Undo a training that diverges, so that whoever sees the reply cannot tell."""
    before = copied_state(model)
    try:
        yield
    except DivergedError as error:
        report(error)
        model.load_state_dict(before)
        for optimizer in optimizers:
            optimizer.state.clear()


class Modes(NamedTuple):
    """What PyTorch keeps per thread."""

    inference: bool
    gradients: bool
    autocast: bool
    precision: torch.dtype


class SuspendedClient(greenlet):
    """A client of a cohort: it runs until its next job, and goes on with the job's result.

    It is a greenlet of one thread. PyTorch keeps gradient, inference and autocast modes per thread,
    and its random generators per process: a switch exchanges them.
    """

    def __init__(self, serve: Callable[[], Any], device: str) -> None:
        super().__init__(lambda _: serve())
        self._cohort = getcurrent()
        self._kind = torch.device(device).type
        self._generators = generators_of(device)
        self._modes = self._modes_now()
        self._random_states = self._random_states_now()

    def go_on(self, result: Any = None) -> Any:
        """Give the client the result or error of its job; return its next job, or its answer."""
        with self._own_state():
            return self.throw(result) if isinstance(result, Exception) else self.switch(result)

    def wait_for(self, job: Any) -> Any:
        """Suspend the client, from inside it, until the cohort has run its job."""
        return self._cohort.switch(job)

    def close(self) -> None:
        """End a client that still waits for a job; its ``finally`` blocks run."""
        if self and not self.dead:
            with self._own_state():
                self.throw()

    @contextmanager
    def _own_state(self) -> Iterator[None]:
        """Exchange the caller's modes and random states for the client's."""
        outside, modes = self._random_states_now(), self._modes
        self._set_random_states(self._random_states)
        try:
            with (
                torch.inference_mode(modes.inference),
                torch.set_grad_enabled(modes.gradients),
                torch.autocast(self._kind, modes.precision, modes.autocast, cache_enabled=False),
            ):
                yield
                self._modes = self._modes_now()
            self._random_states = self._random_states_now()
        finally:
            self._set_random_states(outside)

    def _modes_now(self) -> Modes:
        return Modes(
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
            torch.is_autocast_enabled(self._kind),
            torch.get_autocast_dtype(self._kind),
        )

    def _random_states_now(self) -> list[Tensor]:
        return [generator.get_state() for generator in self._generators]

    def _set_random_states(self, states: list[Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


def result_of(job: Any) -> Any:
    """Run a job at once, or hand it to the cohort in which the client is suspended."""
    client = getcurrent()
    if isinstance(client, SuspendedClient):
        return client.wait_for(job)
    return job.run()
