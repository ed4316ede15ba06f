"""How samples become the numbers that a model sees: ``input-scaling``.

Statistics of `Standardized` are those of the whole data set, before it is split. Sums of pixels
are whole numbers below 2**53, and so exact in float64: every machine gets the same statistics,
and nodes find the hashes of their public sets equal.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedkd_flwr.data.decoding import to_float
from fedkd_flwr.data.registry import SYMMETRIC, DataFormat, reads_data
from fedkd_flwr.data.settings import DataSettings
from fedkd_flwr.data.sources import load_images

LEAST_DIVISOR = 0.001
"""Added to a standard deviation, so that a pixel that is always black does not divide by 0."""


class Scaling(Protocol):
    """From samples as they are decoded to the float32 numbers that a model sees."""

    def __call__(self, samples: Tensor) -> Tensor:
        """Scale samples (n, ...), uint8 or floating-point, on the CPU; the shape stays."""

    def described(self) -> dict[str, Any]:
        """Return what a model's card says, from which `scaling_from` makes the scaling again."""


class Symmetric:
    """`symmetric`: images from -1 to 1; floating-point data keep their scale."""

    def __call__(self, samples: Tensor) -> Tensor:
        """Scale samples as `to_float` does."""
        return to_float(samples)

    def described(self) -> dict[str, Any]:
        """Return the range."""
        return {"scale": "0..255 to -1..1, float32"}


@dataclass(frozen=True, eq=False)
class Standardized:
    """`per-pixel` and `per-channel`: samples minus their mean, over their standard deviation.

    Pixels are numbers from 0 to 255, as pFedMe (Dinh et al., NeurIPS 2020) prepares MNIST. Both are
    float32, of a shape that broadcasts to that of a sample.
    """

    mean: Tensor
    deviation: Tensor

    def __call__(self, samples: Tensor) -> Tensor:
        """Subtract the mean, and divide by the deviation plus `LEAST_DIVISOR`."""
        return (samples.to(torch.float32) - self.mean) / (self.deviation + LEAST_DIVISOR)

    def described(self) -> dict[str, Any]:
        """Return the formula and its numbers, which float32 keeps in decimals."""
        return {
            "scale": f"(0..255 - mean) / (deviation + {LEAST_DIVISOR}), float32",
            "mean": self.mean.tolist(),
            "deviation": self.deviation.tolist(),
        }


def standardized_per_pixel(samples: Tensor) -> Standardized:
    """Take mean and deviation of each position of a sample, over all samples.

    Samples (n, ...) are uint8 or floating-point.
    """
    return _standardized(samples, axes=())


def standardized_per_channel(samples: Tensor) -> Standardized:
    """Take mean and deviation of each channel, over all samples and positions.

    Samples (n, channels, ...) are uint8 or floating-point.
    """
    return _standardized(samples, axes=tuple(range(1, samples.dim() - 1)))


def _standardized(samples: Tensor, axes: tuple[int, ...]) -> Standardized:
    """Take the statistics over all samples and some axes of a sample."""
    values = samples.numpy()
    total = values.sum(axis=0, dtype=np.float64)
    squares = np.einsum("n...,n...->...", values, values, dtype=np.float64)
    summed = total.sum(axis=axes, keepdims=True)
    number = len(values) * total.size / summed.size
    mean = summed / number
    variance = squares.sum(axis=axes, keepdims=True) / number - mean**2
    deviation = np.sqrt(np.maximum(variance, 0.0))
    return Standardized(torch.from_numpy(mean).float(), torch.from_numpy(deviation).float())


STANDARDIZED = {"per-pixel": standardized_per_pixel, "per-channel": standardized_per_channel}
"""What takes the statistics, by the value of ``input-scaling``."""


def scaling_of(settings: DataSettings) -> Scaling:
    """Return how the samples of a run are scaled, private and public ones alike.

    Raises `DataError` if the data set, whose statistics may be needed, cannot be loaded.
    """
    if settings.input_scaling == SYMMETRIC:
        return Symmetric()
    return _of_dataset(
        settings.input_scaling, settings.dataset, settings.data_root, settings.data_format
    )


@reads_data
@functools.lru_cache(maxsize=2)
def _of_dataset(
    input_scaling: str, name: str, data_root: str, data_format: DataFormat
) -> Standardized:
    return STANDARDIZED[input_scaling](load_images(name, data_root, data_format).images)


def scaling_from(description: Mapping[str, Any]) -> Scaling:
    """Return the scaling that a model's card describes; `Symmetric` where it has no statistics.

    The description is the card's ``preprocessing``.
    """
    if "mean" not in description:
        return Symmetric()
    mean, deviation = (torch.tensor(description[name]) for name in ("mean", "deviation"))
    return Standardized(mean, deviation)
