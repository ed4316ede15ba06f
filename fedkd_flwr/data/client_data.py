"""The samples of one client, read when they are first used."""

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkd_flwr.data.registry import Shape
from fedkd_flwr.data.scaling import Scaling
from fedkd_flwr.data.sources import ImageSet, OwnData
from strategies.core.counts import Split

Indices = NDArray[np.int64]
"""Positions of samples, sorted."""

Parts = tuple[Indices, Indices, Indices]
"""Positions of training, validation and test samples."""


@dataclass(frozen=True, eq=False)
class ClientData:
    """The private data of one client and the public pool (pool, ...), on the device.

    A part's samples are read and scaled when they are first used, so that a client that is never
    sampled costs its positions alone. `in_public` counts a node's own samples that are in the pool
    too.
    """

    samples: ImageSet
    positions: Parts
    scaling: Scaling
    device: str
    public_images: Tensor
    classes: int
    in_public: int = 0

    @property
    def num_train(self) -> int:
        """D_n, the number of private training samples."""
        return len(self.positions[0])

    @functools.cached_property
    def train_images(self) -> Tensor:
        """Shape (samples, channels, height, width), float32; own data may have any shape."""
        return self._images(0)

    @functools.cached_property
    def validation_images(self) -> Tensor:
        """Shaped as `train_images`."""
        return self._images(1)

    @functools.cached_property
    def test_images(self) -> Tensor:
        """Shaped as `train_images`."""
        return self._images(2)

    @functools.cached_property
    def train_labels(self) -> Tensor:
        """Shape (samples,), int64."""
        return self._labels(0)

    @functools.cached_property
    def validation_labels(self) -> Tensor:
        """Shape (samples,), int64."""
        return self._labels(1)

    @functools.cached_property
    def test_labels(self) -> Tensor:
        """Shape (samples,), int64."""
        return self._labels(2)

    @property
    def evaluated_splits(self) -> dict[Split, tuple[Tensor, Tensor]]:
        """Images and labels that a model is evaluated on, by split; empty splits are left out."""
        splits: dict[Split, tuple[Tensor, Tensor]] = {
            "test": (self.test_images, self.test_labels),
            "validation": (self.validation_images, self.validation_labels),
        }
        return {split: data for split, data in splits.items() if len(data[1])}

    def _images(self, part: int) -> Tensor:
        read = self.samples.images[torch.from_numpy(self.positions[part])]
        return self.scaling(read).to(self.device)

    def _labels(self, part: int) -> Tensor:
        return self.samples.labels[torch.from_numpy(self.positions[part])].to(self.device)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of training, validation and test samples."""
        train, validation, test = map(len, self.positions)
        return train, validation, test

    @property
    def nbytes(self) -> int:
        """Bytes of all images as float32, once they are read."""
        return 4 * math.prod(self.shape) * sum(self.sizes)

    @property
    def shape(self) -> Shape:
        """Of a sample: channels, height and width of an image."""
        return tuple(self.samples.images.shape[1:])

    def described(self) -> str:
        """Return how many samples each part has, and how a node's own images were read."""
        train, validation, test = self.sizes
        told = f"{train} samples to train, {validation} to validate, {test} to test"
        read = self.samples.said if isinstance(self.samples, OwnData) else ""
        return f"{told} ({read})" if read else told

    @property
    def class_counts(self) -> Tensor:
        """Training samples of each class, shape (K,), int64."""
        return torch.bincount(self.train_labels, minlength=self.classes)
