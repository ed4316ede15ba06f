"""Shares of a data set that are known already, in the form that flwr-datasets draws."""

from collections.abc import Sequence

import numpy as np
from datasets import ClassLabel, Dataset, Features
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray


class KnownShares(Partitioner):  # type: ignore[misc]
    """Hands out labels by shares that are known already.

    Parameters
    ----------
    labels : ndarray
        Shape (samples,), the classes of a data set.
    shares : sequence of ndarray
        The positions in `labels` that each client holds.
    num_classes : int
        How many classes there are, whether or not all occur.
    """

    def __init__(
        self, labels: NDArray[np.int64], shares: Sequence[NDArray[np.int64]], num_classes: int
    ) -> None:
        super().__init__()
        self._shares = shares
        self.dataset = Dataset.from_dict(
            {"label": labels}, features=Features({"label": ClassLabel(num_classes=num_classes)})
        )

    @property
    def num_partitions(self) -> int:
        """How many clients there are."""
        return len(self._shares)

    def load_partition(self, partition_id: int) -> Dataset:
        """Return one client's share."""
        return self.dataset.select(self._shares[partition_id])
