"""Losses: pure functions of logits, or of a model and a batch.

The latter are compared: clients with equal losses may be trained together. Client-specific tensors,
such as the center of a proximal term, are the `tensors` of a loss, and are not compared.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


def cross_entropy(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of a model on labeled images."""
    return functional.cross_entropy(model(images), labels)


@dataclass(frozen=True)
class Distillation:
    """``KL(teacher || student at T)`` on a batch of images and their teacher's predictions.

    T > 0 is the student's; `t_squared` multiplies by T².
    """

    temperature: float
    t_squared: bool

    def __call__(self, model: nn.Module, images: Tensor, teacher: Tensor) -> Tensor:
        """Return the loss. `teacher` is (batch, K), rows on the simplex."""
        return kl_to_teacher(model(images), teacher, self.temperature, self.t_squared)


@dataclass(frozen=True)
class CoDistillation:
    """Cross-entropy plus a weight times the squared distance to a centroid (PerFed-CKT, Eq. 1).

    `weight` is lambda, and `private_loss` f_k, the mean loss of the model on the private batch.
    """

    weight: float
    private_loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = cross_entropy

    def __call__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        public: Tensor,
        centroid: Tensor,
        factors: Tensor | None = None,
    ) -> Tensor:
        """Return the loss on private images plus the distance to the centroid on public images.

        ``factors``, (batch,), multiply the weight; they are equal in one client's batch.
        """
        pull = squared_distance(functional.softmax(model(public), dim=1), centroid)
        if factors is not None:
            pull = factors.mean() * pull
        return self.private_loss(model, images, labels) + self.weight * pull


def kl_to_teacher(
    logits: Tensor, teacher: Tensor, temperature: float, t_squared: bool = False
) -> Tensor:
    """Return ``KL(teacher || softmax(logits / T))``, summed over classes, mean over samples.

    Both are (batch, K), the teacher's rows on the simplex. `t_squared` multiplies by T², which
    keeps the gradient's size independent of T (Hinton et al. 2015).
    """
    log_student = functional.log_softmax(logits / temperature, dim=1)
    # PyTorch's own divergence cannot be computed for several clients at once.
    divergence = (torch.xlogy(teacher, teacher) - teacher * log_student).sum() / len(logits)
    return divergence * temperature**2 if t_squared else divergence


def kl_from_teacher(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return ``KL(softmax(logits / T) || teacher)``, summed over classes, mean over samples.

    Both are (batch, K), the teacher's rows on the simplex. Its zeros count as the smallest normal
    number.
    """
    log_student = functional.log_softmax(logits / temperature, dim=1)
    log_teacher = teacher.clamp(min=torch.finfo(teacher.dtype).tiny).log()
    return (log_student.exp() * (log_student - log_teacher)).sum() / len(logits)


def squared_distance(predictions: Tensor, target: Tensor) -> Tensor:
    """Return ``||target(x) - s(x)||²``, summed over classes, mean over samples.

    Both are (batch, K), rows on the simplex.
    """
    return (target - predictions).square().sum(dim=1).mean()


def cross_entropy_to_teacher(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy of the student's soft predictions under the teacher's.

    Both are (batch, K), the teacher's rows on the simplex. The mean is over samples.
    """
    return functional.cross_entropy(logits / temperature, teacher)
