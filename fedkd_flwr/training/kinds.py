"""Which jobs can be done at once: those of one kind."""

from collections.abc import Hashable

import torch

from fedkd_flwr.models.pool import Architecture
from fedkd_flwr.training import optimizers
from fedkd_flwr.training.jobs import Job, PredictJob, TrainJob
from fedkd_flwr.training.loop import draws_while_training

PLAIN_DESCENT = (torch.optim.SGD, optimizers.SGD)
"""Stochastic gradient descent as PyTorch has it; a class derived from it may step otherwise."""


def kind_of(job: Job) -> Hashable | None:
    """Return what two jobs have to share to be done at once; None for a job to be done alone.

    That is the architecture and, in training, loss and optimizer. Models that draw random
    numbers, losses that are no values, and optimizers other than plain stochastic gradient
    descent over all parameters are for one client alone.
    """
    if not isinstance(job, TrainJob | PredictJob):
        return None
    architecture: Architecture | None = vars(job.model).get("architecture")
    if architecture is None:
        return None
    if isinstance(job, PredictJob):
        return architecture, tuple(job.images.shape[1:])
    if not _descends_plainly(job) or draws_while_training(job.model) or not _is_value(job.loss):
        return None
    group = job.optimizer.param_groups[0]
    rates = tuple(group[name] for name in ("lr", "momentum", "weight_decay"))
    shapes = tuple(tensor.shape for tensor in getattr(job.loss, "tensors", ()))
    return architecture, job.loss, shapes, rates


def _descends_plainly(job: TrainJob) -> bool:
    """Return whether a job takes the plain step with all parameters of its model."""
    optimizer, groups = job.optimizer, job.optimizer.param_groups
    if type(optimizer) not in PLAIN_DESCENT or len(groups) != 1:
        return False
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    varied = any(groups[0][name] for name in ("nesterov", "dampening", "maximize"))
    parameters = {id(parameter) for parameter in job.model.parameters()}
    trained = {id(parameter) for parameter in groups[0]["params"] if parameter.requires_grad}
    return not hooks and not varied and trained == parameters


def _is_value(loss: object) -> bool:
    """Return whether equal losses can be told from others."""
    try:
        hash(loss)
    # What a user's own loss is made of may have no hash.
    except TypeError:
        return False
    return True
