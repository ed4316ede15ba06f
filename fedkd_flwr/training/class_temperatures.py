"""A temperature of the teacher for each class, which follows the client's loss on the class.

F. Qi, D. Shi, C. Xu, S. Li, C. Xu, *Rethinking the Temperature for Federated Heterogeneous
Distillation*, ICML 2025 (ReT-FHD): its category-aware global temperature scaling, as in the
authors' code. Classes with a loss above the mean get a sharper teacher, and those below it a softer
one.

Differences from the paper
--------------------------
- This is an option of methods whose clients distill a teacher on public samples
  (``class-temperature-rate``). In the paper the teacher is one mean logit vector per class, for
  private samples. A public sample has no label, so the teacher's most probable class takes its
  place.
- The loss of a class is a mean over its samples, so that a frequent class is not a hard one. The
  authors' code has the sum.
- The temperature of a class without training samples stays at 1. In the authors' code it rises, but
  no sample of the client uses it.
- Temperatures follow the losses after each local training, not in each evaluation.
- The teacher's predictions at temperature T are scaled, so its logits are divided by T times the
  temperature of the class. The student's are divided by T, as without the option.
- The multi-level elastic temperature of intermediate layers, and the blockchain with its validation
  of logits, are not part of the option.
"""

from torch import Tensor
from torch.nn import functional

LOWEST, HIGHEST = 0.5, 5.0
"""Limits of a class's temperature, those of the authors' code."""


def losses_by_class(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of each class, shape (K,); NaN for classes without samples."""
    losses = functional.cross_entropy(logits, labels, reduction="none")
    held = functional.one_hot(labels, logits.shape[1]).to(losses.dtype)
    return losses @ held / held.sum(dim=0)


def adapted(temperatures: Tensor, losses: Tensor, rate: float) -> Tensor:
    """Lower the temperatures of classes with losses above the mean, and raise the others.

    ``t_c - rate * (L_c - mean L) / max |L - mean L|``, within the limits.

    Parameters
    ----------
    temperatures : Tensor
        Shape (K,).
    losses : Tensor
        Shape (K,), L. The temperatures of classes with NaN stay.
    rate : float
        Largest change.
    """
    gaps = (losses - losses.nanmean()).nan_to_num()
    largest = gaps.abs().max()
    if not largest:
        return temperatures
    return (temperatures - rate * gaps / largest).clamp(LOWEST, HIGHEST)


def at_class_temperatures(teacher: Tensor, temperatures: Tensor) -> Tensor:
    """Return the teacher with its logits divided by the temperature of its most probable class.

    Parameters
    ----------
    teacher : Tensor
        Shape (P, K), rows on the simplex.
    temperatures : Tensor
        Shape (K,).

    Returns
    -------
    Tensor
        Shape (P, K), rows on the simplex.
    """
    # The power of the probabilities, relative to the largest, which then cannot vanish.
    relative = teacher / teacher.amax(dim=1, keepdim=True)
    powers = relative ** (1 / temperatures[teacher.argmax(dim=1)])[:, None]
    return powers / powers.sum(dim=1, keepdim=True)
