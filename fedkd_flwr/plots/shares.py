"""A flwr-datasets partitioner for shares that are already known."""

from collections.abc import Sequence

import numpy as np
from datasets import ClassLabel, Dataset, Features
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray


class KnownShares(Partitioner):  # type: ignore[misc]
    """Partitions labels by shares that are already known.

    Parameters
    ----------
    labels : ndarray
        Labels of the data set, shape (samples,).
    shares : sequence of ndarray
        The indices of each client's samples.
    num_classes : int
        Number of classes, including classes without samples.
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
        """Number of clients."""
        return len(self._shares)

    def load_partition(self, partition_id: int) -> Dataset:
        """Return one client's share."""
        return self.dataset.select(self._shares[partition_id])
