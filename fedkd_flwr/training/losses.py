"""Losses: pure functions of logits, or of a model and a batch.

The latter are compared: clients with equal losses may be trained together. Client-specific tensors,
such as the center of a proximal term, are the `tensors` of a loss, and are not compared.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn import functional
from torch.nn.utils import parameters_to_vector


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


@dataclass(frozen=True)
class Proximal:
    """Cross-entropy plus ``weight / 2 * ||w - center||²``.

    `tensors` is the center, one per parameter of the model, in order. `weight` is mu of FedProx,
    lambda of Ditto and pFedMe.
    """

    tensors: Sequence[Tensor] = field(compare=False)
    weight: float

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        pairs = zip(model.parameters(), self.tensors, strict=True)
        distance = _sum_over((parameter - center).square() for parameter, center in pairs)
        return cross_entropy(model, images, labels) + self.weight / 2 * distance


@dataclass(frozen=True)
class Linear:
    """Cross-entropy whose gradient is shifted by a direction, as if ``<direction, w>`` was added.

    `tensors` is the direction, one per parameter of the model, in order: in SCAFFOLD ``c - c_i``.
    """

    tensors: Sequence[Tensor] = field(compare=False)

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return cross_entropy(model, images, labels) + slope_along(self.tensors, model)


@dataclass(frozen=True)
class ProximalLinear:
    """The terms of `Proximal` and `Linear` together.

    `tensors` are the center and then the direction. `weight` is alpha of FedDyn.
    """

    tensors: Sequence[Tensor] = field(compare=False)
    weight: float

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        half = len(self.tensors) // 2
        loss = Proximal(self.tensors[:half], self.weight)(model, images, labels)
        return loss + slope_along(self.tensors[half:], model)


def slope_along(direction: Sequence[Tensor], model: nn.Module) -> Tensor:
    """Return zero, with the gradient of ``<direction, w>`` in a model's parameters w."""
    products = _sum_over(
        parameter * part for parameter, part in zip(model.parameters(), direction, strict=True)
    )
    return products - products.detach()


def _sum_over(parts: Iterable[Tensor]) -> Tensor:
    return torch.stack([part.sum() for part in parts]).sum()


def flat_parameters(model: nn.Module) -> Tensor:
    """Return a copy of a model's parameters as one vector, in order."""
    return parameters_to_vector(model.parameters()).detach()


def split_like_parameters(vector: Tensor, model: nn.Module) -> list[Tensor]:
    """Split a flat vector into tensors with the shapes of a model's parameters, in order."""
    parameters = list(model.parameters())
    parts = torch.split(vector, [parameter.numel() for parameter in parameters])
    return [part.view_as(like) for part, like in zip(parts, parameters, strict=True)]


def parameters_of(model: nn.Module) -> list[Tensor]:
    """Return detached copies of a model's parameters, in order."""
    return [parameter.detach().clone() for parameter in model.parameters()]


@torch.no_grad()
def relative_distance(model: nn.Module, before: Sequence[Tensor]) -> float:
    """Return ``||w - before|| / ||before||`` over all of a model's parameters; 0 without any."""
    if not before:
        return 0.0
    moved = [new - old for new, old in zip(model.parameters(), before, strict=True)]
    return float(_norm(moved) / _norm(before))


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    return vector_norm(torch.stack([vector_norm(tensor) for tensor in tensors]))


@torch.no_grad()
def fill_parameters(model: nn.Module, values: Sequence[Tensor]) -> None:
    """Overwrite a model's parameters, in order. Its buffers do not change."""
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.copy_(value)
