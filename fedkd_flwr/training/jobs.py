"""The jobs of a client's training: optimizer steps and predictions.

A client's `train` hands its jobs to `PersonalClient.do`. A client that is trained alone runs each
at once. `fedkd_flwr.training.cohort` runs equal jobs of several clients together.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedkd_flwr.models.vectors import copied_state
from fedkd_flwr.training.loop import (
    Batch,
    DivergedError,
    Gradients,
    Loss,
    backpropagate,
    predict_logits,
    train_on,
)


@dataclass(frozen=True, eq=False)
class TrainJob:
    """Optimizer steps on batches. The result is the mean loss over the samples of `optimizer`.

    Attributes
    ----------
    model : nn.Module
        Trained in place.
    loss : callable
        Mean loss of the model on a batch.
    optimizer : torch.optim.Optimizer
        Over parameters of the model; steps once a batch. The other parameters do not change.
    batches : iterable of tuple of Tensor
        On the model's device.
    gradients : callable
        What sets the gradients of a batch. Jobs with other gradients than backpropagation's run
        alone.
    alternate : torch.optim.Optimizer or None
        Over other parameters of the model. It takes the step on the first batch and then on every
        other one, in place of `optimizer`.
    """

    model: nn.Module
    loss: Loss
    optimizer: torch.optim.Optimizer
    batches: Iterable[Batch]
    gradients: Gradients = backpropagate
    alternate: torch.optim.Optimizer | None = None

    def __post_init__(self) -> None:
        """Refuse a loss of PyTorch itself, which takes logits.

        Raises
        ------
        TypeError
            With what to write instead.
        """
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
        """Train.

        Raises `DivergedError` if the mean loss, or a weight at the end, is not finite.
        """
        how = self.gradients, self.alternate
        return train_on(self.model, self.loss, self.optimizer, self.batches, *how)


@dataclass(frozen=True, eq=False)
class PredictJob:
    """A model's logits on images, (P, K) float32.

    Attributes
    ----------
    model : nn.Module
        Left in evaluation mode.
    images : Tensor
        Shape (P, channels, height, width).
    """

    model: nn.Module
    images: Tensor

    def run(self) -> Tensor:
        """Predict."""
        return predict_logits(self.model, self.images)


Job = TrainJob | PredictJob
"""What a client may do."""


class StepCounter:
    """Counts a client's gradient steps: one for each batch of its training jobs.

    Clients add steps that they take outside of jobs.
    """

    def __init__(self) -> None:
        self.taken = 0

    def counted(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches unchanged, and count a step for each."""
        for batch in batches:
            self.taken += 1
            yield batch


def undone_if_it_diverges(
    job: TrainJob, run: Callable[[TrainJob], float], report: Callable[[DivergedError], None]
) -> float:
    """Run a training, and undo it if it diverges.

    The model is then as it was before, its optimizer begins anew, and the loss is 0. So the client
    goes on, and whoever sees its reply cannot tell.
    """
    before = copied_state(job.model)
    try:
        return run(job)
    except DivergedError as error:
        report(error)
        job.model.load_state_dict(before)
        for optimizer in job.optimizers:
            optimizer.state.clear()
        return 0.0


def train_unless_it_diverges(
    model: nn.Module, train: Callable[[], None], report: Callable[[DivergedError], None]
) -> None:
    """Train, or leave the model as it was and report if the training diverges."""
    before = copied_state(model)
    try:
        train()
    except DivergedError as error:
        report(error)
        model.load_state_dict(before)
