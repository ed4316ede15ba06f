"""Distillation losses, as pure functions of logits and soft predictions."""

from torch import Tensor
from torch.nn import functional


def kl_to_teacher(
    logits: Tensor, teacher: Tensor, temperature: float, t_squared: bool = False
) -> Tensor:
    """Return ``KL(teacher || softmax(logits / T))``, summed over classes, mean over samples.

    Parameters
    ----------
    logits : Tensor
        Shape (batch, K), the student's logits.
    teacher : Tensor
        Shape (batch, K), rows on the simplex.
    temperature : float
        T > 0 of the student.
    t_squared : bool
        Whether to multiply by T², which keeps the gradient's size independent of T
        (Hinton et al. 2015).

    Returns
    -------
    Tensor
        Scalar.
    """
    log_student = functional.log_softmax(logits / temperature, dim=1)
    divergence = functional.kl_div(log_student, teacher, reduction="batchmean")
    return divergence * temperature**2 if t_squared else divergence


def squared_distance(predictions: Tensor, target: Tensor) -> Tensor:
    """Return ``||target(x) - s(x)||²``, summed over classes, mean over samples.

    Parameters
    ----------
    predictions, target : Tensor
        Shape (batch, K), rows on the simplex.

    Returns
    -------
    Tensor
        Scalar.
    """
    return (target - predictions).square().sum(dim=1).mean()


def cross_entropy_to_teacher(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy of the student's soft predictions under the teacher's.

    Parameters
    ----------
    logits : Tensor
        Shape (batch, K), the student's logits.
    teacher : Tensor
        Shape (batch, K), rows on the simplex.
    temperature : float
        T > 0 of the student.

    Returns
    -------
    Tensor
        Scalar, mean over samples.
    """
    return functional.cross_entropy(logits / temperature, teacher)
