"""The kind of a job. Jobs of one kind can run together."""

from collections.abc import Hashable

import torch

from fedkd_flwr.models.model_pool import Architecture
from fedkd_flwr.training import optimizers
from fedkd_flwr.training.jobs import Job, PredictJob, TrainJob
from fedkd_flwr.training.loop import backpropagate, draws_while_training

PLAIN_DESCENT = (torch.optim.SGD, optimizers.SGD)
"""PyTorch's stochastic gradient descent. A derived class may take other steps."""


def kind_of(job: Job) -> Hashable | None:
    """Return what two jobs must have in common to run together; None for a job that runs alone.

    That is the architecture and, in training, the loss and the optimizer. A job runs alone if its
    gradients are not plain, its model draws random numbers, its loss cannot be compared, or its
    optimizer is not plain stochastic gradient descent over all parameters.
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
    if not _descends_plainly(job) or draws_while_training(job.model) or not _is_value(job.loss):
        return None
    group = job.optimizer.param_groups[0]
    rates = tuple(group[name] for name in ("lr", "momentum", "weight_decay"))
    shapes = tuple(tensor.shape for tensor in getattr(job.loss, "tensors", ()))
    return architecture, job.loss, shapes, rates


def _descends_plainly(job: TrainJob) -> bool:
    """Return whether a job takes plain steps with all parameters of its model."""
    optimizer, groups = job.optimizer, job.optimizer.param_groups
    if type(optimizer) not in PLAIN_DESCENT or len(groups) != 1:
        return False
    # PyTorch has no public way to ask whether an optimizer has hooks.
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    varied = any(groups[0][name] for name in ("nesterov", "dampening", "maximize"))
    parameters = {id(parameter) for parameter in job.model.parameters()}
    trained = {id(parameter) for parameter in groups[0]["params"] if parameter.requires_grad}
    return not hooks and not varied and trained == parameters


def _is_value(loss: object) -> bool:
    """Return whether a loss can be compared with others."""
    try:
        hash(loss)
    # A custom loss may have attributes without a hash.
    except TypeError:
        return False
    return True
