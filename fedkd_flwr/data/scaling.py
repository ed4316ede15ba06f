"""How samples become the numbers that a model sees: ``input-scaling``.

Statistics of ``per-pixel`` and ``per-channel`` are those of the whole data set, before it is split.
Sums of pixels are whole numbers below 2**53, and so exact in float64: every machine gets the same
statistics, and nodes find the hashes of their public sets equal. Those of ``auto`` are of training
samples, see `fedkd_flwr.data.clients.scaling_of_plan`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkd_flwr.data.decoding import to_float
from fedkd_flwr.data.registry import SYMMETRIC, DataError, reads_data
from fedkd_flwr.data.settings import AS_PRIVATE, AUTO, DataSettings
from fedkd_flwr.data.sources import load_images

LEAST_DIVISOR = 0.001
"""Added to a standard deviation, so that a pixel that is always black does not divide by 0."""

LARGEST_RATIO, LARGEST_VALUE = 100, 50
"""Networks hardly train where standard deviations differ more, or values are larger."""


class Symmetric:
    """`symmetric`: images from -1 to 1; floating-point data keep their scale."""

    def __call__(self, samples: Tensor) -> Tensor:
        """Scale samples (n, ...) on the CPU as `to_float` does."""
        return to_float(samples)

    def described(self) -> dict[str, Any]:
        """Return what a model's card says, from which `scaling_from` makes the scaling again."""
        return {"scale": "0..255 to -1..1, float32"}


@dataclass(frozen=True, eq=False)
class Standardized:
    """Samples minus their mean, over their standard deviation and what is added to it.

    Pixels are numbers from 0 to 255, as pFedMe (Dinh et al., NeurIPS 2020) prepares MNIST. Both are
    float32, of a shape that broadcasts to that of a sample.
    """

    mean: Tensor
    deviation: Tensor
    added: float = LEAST_DIVISOR

    def __call__(self, samples: Tensor) -> Tensor:
        """Subtract the mean, and divide by the deviation plus `added`."""
        return (samples.to(torch.float32) - self.mean) / (self.deviation + self.added)

    def described(self) -> dict[str, Any]:
        """Return the formula and its numbers, which float32 keeps in decimals."""
        return {
            "scale": f"(x - mean) / (deviation + {self.added}), float32; pixels x from 0 to 255",
            "added": self.added,
            "mean": self.mean.tolist(),
            "deviation": self.deviation.tolist(),
        }


Scaling = Symmetric | Standardized
"""From samples as they are decoded to the float32 numbers that a model sees."""


def standardized(samples: Tensor, by_channel: bool) -> Standardized:
    """Take mean and deviation of each channel, or else of each position of a sample."""
    axes = tuple(range(1, samples.dim() - 1)) if by_channel else ()
    values = samples.numpy()
    total = values.sum(axis=0, dtype=np.float64)
    squares = np.einsum("n...,n...->...", values, values, dtype=np.float64)
    summed = total.sum(axis=axes, keepdims=True)
    number = len(values) * total.size / summed.size
    mean = summed / number
    variance = squares.sum(axis=axes, keepdims=True) / number - mean**2
    deviation = np.sqrt(np.maximum(variance, 0.0))
    return Standardized(torch.from_numpy(mean).float(), torch.from_numpy(deviation).float())


def standardized_by_column(samples: Tensor) -> Standardized:
    """Take mean and deviation of each column, or channel, without missing values."""
    from sklearn.preprocessing import StandardScaler  # deferred: images do not need it

    columns = samples.shape[1]
    found = StandardScaler().fit(samples.movedim(1, -1).reshape(-1, columns).double().numpy())
    shape = (columns, *[1] * (samples.dim() - 2))
    mean, deviation = (
        torch.from_numpy(values).float().view(shape) for values in (found.mean_, found.scale_)
    )
    return Standardized(mean, deviation, added=0.0)


def unscaled(samples: Tensor) -> str:
    """Return why networks hardly train on floating-point samples as they are; empty if they do."""
    columns = samples.movedim(1, -1).reshape(-1, samples.shape[1]).numpy()
    deviations = np.nanstd(columns, axis=0, dtype=np.float64)
    varying = deviations[deviations > 0]
    ratio = varying.max() / varying.min() if len(varying) else 1.0
    largest = np.abs(np.nan_to_num(columns)).max()
    if ratio < LARGEST_RATIO and largest <= LARGEST_VALUE:
        return ""
    return (
        f"spreads of columns differ by a factor of {ratio:.3g}, and values go up to {largest:.3g}"
    )


@reads_data(2)
def scaling_of(settings: DataSettings) -> Scaling:
    """Return how the samples of a run are scaled, private and public ones; not by ``auto``."""
    if settings.input_scaling in (SYMMETRIC, AUTO):
        return Symmetric()
    found = load_images(settings.dataset, settings.data_root, settings.data_format)
    return standardized(found.images, settings.input_scaling == "per-channel")


def scaled_as_public(settings: DataSettings, samples: Tensor, scaling: Scaling) -> Tensor:
    """Return samples (n, ...) scaled as public ones are, where `scaling` is that of private ones.

    Raises `DataError` if pixels should keep their range from 0 to 255, and the samples have none.
    """
    if settings.public_scaling == AS_PRIVATE:
        return scaling(samples)
    if samples.is_floating_point() and len(samples):
        raise DataError(
            f"public-scaling = {settings.public_scaling} leaves images at 0 to 255, and the public "
            f"samples are other numbers; set public-scaling to {AS_PRIVATE}"
        )
    return samples.to(torch.float32)


def statistics_in(path: str, columns: int) -> Standardized:
    """Return the scaling in a JSON file: the lists ``mean`` and ``deviation``, or a card."""
    try:
        content = json.loads(Path(path).expanduser().read_text())
        described = {"added": 0.0, **content.get("preprocessing", content)}
        found = scaling_from(described)
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise DataError(f"input-statistics cannot be read: {error}") from error
    if (
        isinstance(found, Standardized)
        and found.mean.shape[:1] == found.deviation.shape[:1] == (columns,)
        and (found.deviation + found.added > 0).all()
        and torch.isfinite(torch.cat([found.mean.flatten(), found.deviation.flatten()])).all()
    ):
        return found
    raise DataError(
        f"input-statistics needs the lists mean and deviation, each of {columns} numbers that "
        "are finite, and deviations above 0"
    )


def scaling_from(description: Mapping[str, Any]) -> Scaling:
    """Return the scaling that a model's card describes; `Symmetric` where it has no statistics."""
    if "mean" not in description:
        return Symmetric()
    mean, deviation = (torch.tensor(description[name]) for name in ("mean", "deviation"))
    return Standardized(mean, deviation, description.get("added", LEAST_DIVISOR))
