"""The kind of a job. Jobs of one kind can run together."""

from collections.abc import Hashable

import torch
from torch import nn

from fedkd_flwr.models.model_pool import Architecture
from fedkd_flwr.models.torch_internals import draws_while_training, has_hooks
from fedkd_flwr.training import optimizers
from fedkd_flwr.training.jobs import Job, PredictJob, TrainJob
from fedkd_flwr.training.loop import backpropagate, trained_by

PLAIN_DESCENT = (torch.optim.SGD, optimizers.SGD)
"""PyTorch's stochastic gradient descent. A derived class may take other steps."""


def kind_of(job: Job) -> Hashable | None:
    """Return what two jobs must have in common to run together; None for a job that runs alone.

    That is the architecture and, in training, the loss and the optimizers with the names of their
    parameters. A job runs alone if its gradients are not plain, its model draws random numbers, its
    loss cannot be compared, or an optimizer is not plain stochastic gradient descent.
    """
    if not isinstance(job, TrainJob | PredictJob):
        return None
    architecture: Architecture | None = vars(job.model).get("architecture")
    if architecture is None:
        return None
    if isinstance(job, PredictJob):
        return architecture, tuple(job.images.shape[1:])
    if job.gradients is not backpropagate:
        return None
    if draws_while_training(job.model) or not _is_value(job.loss):
        return None
    if not all(_descends_plainly(job.model, optimizer) for optimizer in job.optimizers):
        return None
    descents = tuple(_descent(job.model, optimizer) for optimizer in job.optimizers)
    shapes = tuple(tensor.shape for tensor in getattr(job.loss, "tensors", ()))
    return architecture, job.loss, shapes, descents


def _descends_plainly(model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer takes plain steps with parameters of a model."""
    groups = optimizer.param_groups
    if type(optimizer) not in PLAIN_DESCENT or len(groups) != 1:
        return False
    varied = any(groups[0][name] for name in ("nesterov", "dampening", "maximize"))
    return (
        not has_hooks(optimizer)
        and not varied
        and set(trained_by(optimizer)) <= set(model.parameters())
    )


def _descent(model: nn.Module, optimizer: torch.optim.Optimizer) -> Hashable:
    """Return the settings of plain descent, and the names of the parameters that it trains."""
    group = optimizer.param_groups[0]
    names = tuple(trained_names(model, optimizer))
    return group["lr"], group["momentum"], group["weight_decay"], names


def trained_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the names of a model's parameters that an optimizer trains, in the model's order."""
    trained = set(trained_by(optimizer))
    return [name for name, parameter in model.named_parameters() if parameter in trained]


def _is_value(loss: object) -> bool:
    """Return whether a loss can be compared with others."""
    try:
        hash(loss)
    # A custom loss may have attributes without a hash.
    except TypeError:
        return False
    return True
