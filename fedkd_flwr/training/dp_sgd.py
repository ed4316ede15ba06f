"""Local training with differential privacy for each training sample: DP-SGD.

Abadi et al., *Deep Learning with Differential Privacy*, CCS 2016, arXiv:1607.00133. Each step draws
every sample with probability q, clips the gradient of each sample to norm C, and adds Gaussian
noise of standard deviation ``sigma * C`` to their sum (Algorithm 1). Opacus (1.6.0) is not used:
its hooks miss terms of a loss that depend on the weights directly, as of FedProx, and it installs
packages that hide ``examples`` and ``benchmarks``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedkd_flwr.models.torch_internals import mixes_samples
from fedkd_flwr.training.batched_functions import Objective
from fedkd_flwr.training.loop import Batch, Loss
from fedkd_flwr.training.settings import SMALLEST_NOISE
from strategies.core.flower import root_log_as_it_is
from strategies.core.privacy import NormalDraws, UniformDraws, secret_normal, secret_uniform

PRIVATE_COLUMNS = 2
"""Images and labels: the first tensors of a batch, with one row per private sample."""

SMALLEST_STEP = 2.0**-20
"""Noised sums are multiples of this times the deviation of the noise. Their last digits would tell
what was added to it otherwise (Mironov, *On Significance of the Least Significant Bits for
Differential Privacy*, CCS 2012)."""

AT_ONCE = 64  # samples whose gradients are in memory at once


def poisson_batches(
    num_samples: int, rate: float, steps: int, draw: UniformDraws = secret_uniform
) -> Iterator[Tensor]:
    """Yield positions of batches into which each sample is drawn independently at a rate."""
    for _ in range(steps):
        yield torch.from_numpy(np.flatnonzero(draw((num_samples,)) < rate))


@dataclass(frozen=True)
class PrivateGradients:
    """Clipped and noised gradients of a batch, instead of backpropagation.

    C is the largest norm of the gradient of a sample, and `noise_multiplier` sigma, the standard
    deviation of the noise divided by C. The sum is divided by the expected number of samples: the
    number in a batch is itself private. `draw` returns standard normal numbers of a shape, which
    nobody else may be able to repeat.
    """

    clip_norm: float
    noise_multiplier: float
    expected_size: float
    draw: NormalDraws = field(default=secret_normal, compare=False)

    def __call__(
        self, model: nn.Module, loss: Loss, batch: Batch, parameters: Sequence[nn.Parameter]
    ) -> Tensor:
        """Set the gradients of some parameters, and return 0: a loss has no noise."""
        private, shared = batch[:PRIVATE_COLUMNS], batch[PRIVATE_COLUMNS:]
        device, chosen = next(model.parameters()).device, set(parameters)
        trained = {name: p for name, p in model.named_parameters() if p in chosen}
        sums = {name: torch.zeros_like(parameter) for name, parameter in trained.items()}
        drawing = [device.index or 0] if device.type == "cuda" else []
        for chunk in zip(*(torch.split(column, AT_ONCE) for column in private), strict=True):
            if len(chunk[0]):
                # No sample may change what others draw, which whoever knows the seed can repeat.
                with torch.random.fork_rng(drawing):
                    gradients = gradients_of_samples(model, loss, chunk, shared)
                # Autocast would round them, and a sample could change a sum by more than C.
                with torch.autocast(device.type, enabled=False):
                    clipped = self._sum_of_clipped(gradients)
                sums = {name: sums[name] + clipped[name] for name in sums}
        torch.rand((), device=device)  # so that the next step draws other numbers
        deviation = self.noise_multiplier * self.clip_norm
        for name, parameter in trained.items():
            noise = torch.from_numpy(self.draw(tuple(parameter.shape))).to(device)
            noised = rounded(sums[name] + deviation * noise, deviation * SMALLEST_STEP)
            parameter.grad = (noised / self.expected_size).to(parameter.dtype)
        return torch.zeros((), device=device)

    def _sum_of_clipped(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        squares = [gradient.flatten(1).square().sum(1) for gradient in gradients.values()]
        norms = torch.stack(squares).sum(0).sqrt()
        # A sample whose gradient is not finite would make the whole sum so, whatever the noise.
        factors = torch.where(norms.isfinite(), (self.clip_norm / norms).clamp(max=1), 0.0)
        return {
            name: torch.tensordot(factors, gradient.nan_to_num(0.0, 0.0, 0.0), dims=1)
            for name, gradient in gradients.items()
        }


def rounded(numbers: Tensor, step: float) -> Tensor:
    """Return the nearest multiples of a step; the numbers themselves if it is 0."""
    return (numbers / step).round() * step if step else numbers


def gradients_of_samples(
    model: nn.Module, loss: Loss, private: Batch, shared: Batch = ()
) -> dict[str, Tensor]:
    """Return the gradient of the loss for each sample by itself, (n, …) by parameter.

    `private` are columns with one row a sample, `shared` tensors that every loss takes whole.
    """
    trained = {k: p.detach() for k, p in model.named_parameters() if p.requires_grad}
    objective = Objective(model, loss)

    def loss_of_one(parameters: dict[str, Tensor], *rows: Tensor) -> Tensor:
        named = {f"model.{name}": parameter for name, parameter in parameters.items()}
        batch = (*(row.unsqueeze(0) for row in rows), *shared)
        value: Tensor = functional_call(objective, named, ((), batch))
        return value

    in_dims = (None, *(0 for _ in private))
    # Dropout draws once for all samples.
    gradients: dict[str, Tensor] = vmap(grad(loss_of_one), in_dims, randomness="same")(
        trained, *private
    )
    return gradients


def require_separate_samples(model: nn.Module, name: str = "the model") -> None:
    """Refuse a model that mixes samples, because no gradient then belongs to one sample."""
    if mixes_samples(model):
        raise ValueError(
            f"differential privacy needs a model in which samples do not mix, and {name} has "
            "batch normalization; use mlp, lenet or cnn, or group normalization "
            "(torch.nn.GroupNorm) in your own"
        )


def added(spent: NDArray[np.float64], rate: float, noise: float, steps: int) -> NDArray[np.float64]:
    """Return a client's steps, (S, 3) by rate q, noise sigma and number, with further ones."""
    alike = (spent[:, 0] == rate) & (spent[:, 1] == noise)
    if not alike.any():
        return np.vstack([spent, [rate, noise, steps]])
    return spent + np.outer(alike, [0, 0, steps])


def epsilon_spent(spent: NDArray[np.float64], delta: float) -> float:
    """Return epsilon at delta after the steps of `added`, by dp-accounting's Rényi accountant."""
    return _epsilon(tuple(map(tuple, spent.tolist())), delta)


@lru_cache(maxsize=256)
def _epsilon(steps: tuple[tuple[float, float, float], ...], delta: float) -> float:
    if not steps:
        return 0.0
    if min(noise for _, noise, _ in steps) < SMALLEST_NOISE:
        return math.inf
    # Deferred: this import takes seconds.
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    with root_log_as_it_is():
        accountant = RdpAccountant()
        for rate, noise, count in steps:
            accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), int(count))
        return float(accountant.get_epsilon(delta))
