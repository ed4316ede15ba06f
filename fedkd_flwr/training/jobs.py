"""What a client asks for while it trains: jobs, done alone or, equal ones, side by side.

A client's `train` is a generator. It yields a job, is sent its result, and returns its reply, so
that whoever serves the client decides how the job is done: `complete` does each by the plain loop.
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedkd_flwr.training.loop import Batch, DivergedError, Loss, predict_logits, train_on

Answer = TypeVar("Answer")


@dataclass(frozen=True, eq=False)
class TrainJob:
    """Optimizer steps on batches; its result is the mean loss over all samples seen.

    Attributes
    ----------
    model : nn.Module
        Trained in place.
    loss : callable
        Mean loss of the model on a batch.
    optimizer : torch.optim.Optimizer
        Over the model's parameters; steps once a batch.
    batches : iterable of tuple of Tensor
        On the model's device.
    """

    model: nn.Module
    loss: Loss
    optimizer: torch.optim.Optimizer
    batches: Iterable[Batch]

    def run(self) -> float:
        """Train.

        Raises
        ------
        DivergedError
            If the mean loss, or a weight in the end, is no finite number.
        """
        return train_on(self.model, self.loss, self.optimizer, self.batches)


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
"""Whatever a client may ask for."""

Steps = Generator[Job, Any, Answer]
"""A part of a client's training that asks for jobs and ends with an answer."""


def complete(steps: Steps[Answer]) -> Answer:
    """Do all jobs that a client asks for, one after the other, and return its answer.

    A job that diverges is told to the client, which may have another plan.
    """
    try:
        job = next(steps)
        while True:
            try:
                result = job.run()
            except DivergedError as error:
                job = steps.throw(error)
            else:
                job = steps.send(result)
    except StopIteration as stop:
        answer: Answer = stop.value
        return answer
