"""Splits of a data set over clients, as Flower partitioners: the table in METHODS.md.

Every split but `iid` says how many samples of each class each client gets; `deal` then hands
out that many at random. No sample has two owners, no client goes empty, and the same seed
gives the same split.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray

from fedkd_flwr.data.sources import DataError
from strategies.core.randomness import random_generator

Indices = NDArray[np.int64]
"""Positions of samples in a data set, or numbers of samples."""


def deal(labels: Indices, counts: Indices, generator: np.random.Generator) -> list[Indices]:
    """Hand out random samples, so many of each class to each client.

    Parameters
    ----------
    labels : ndarray
        Shape (n,), classes as positions 0..K-1 in `counts`.
    counts : ndarray
        Shape (N, K), samples of each class for each client; a column sums to no more than the
        class holds.
    generator : numpy.random.Generator
        Draws who gets which.

    Returns
    -------
    list of ndarray
        N arrays of positions, each sorted; what is left over belongs to nobody.
    """
    clients, classes = counts.shape
    shares: list[list[Indices]] = [[] for _ in range(clients)]
    for label in range(classes):
        samples = generator.permutation(np.flatnonzero(labels == label))
        for share, part in zip(shares, np.split(samples, counts[:, label].cumsum()), strict=False):
            share.append(part)
    return [np.sort(np.concatenate(share)) for share in shares]


def choose_classes(
    num_choosers: int, num_classes: int, size: int, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """Let each chooser have some random classes, all classes being chosen equally often.

    Each takes the classes chosen least so far, ties broken at random; so no class is chosen
    more than once oftener than another, and none runs out before its time.

    Parameters
    ----------
    num_choosers, num_classes, size : int
        Choosers, classes in all, and classes that each gets.
    generator : numpy.random.Generator
        Breaks the ties.

    Returns
    -------
    ndarray
        Shape (num_choosers, num_classes), `size` true values in each row.

    Raises
    ------
    DataError
        If there are not `size` classes.
    """
    if size > num_classes:
        raise DataError(f"a client cannot have {size} classes: the data set has {num_classes}")
    chosen = np.zeros((num_choosers, num_classes), dtype=bool)
    for row in chosen:
        # `row` is a view: filling it counts for the next chooser.
        row[np.lexsort((generator.random(num_classes), chosen.sum(axis=0)))[:size]] = True
    return chosen


class SeededPartitioner(Partitioner):  # type: ignore[misc]
    """Base of the splits: deterministic in a seed, computed when a partition is first asked for.

    A split overrides `counts`, or `assign` if it does not look at classes.

    Parameters
    ----------
    num_partitions : int
        N, the number of clients.
    seed : int
        Seed of the split.
    label_column : str
        Column of the classes.
    """

    def __init__(self, num_partitions: int, seed: int, label_column: str = "label") -> None:
        super().__init__()
        if num_partitions < 1:
            raise DataError(f"a data set cannot be split over {num_partitions} clients")
        self._num_partitions = num_partitions
        self._seed = seed
        self._label_column = label_column
        self._shares: list[Indices] | None = None

    @property
    def num_partitions(self) -> int:
        """N, the number of clients."""
        return self._num_partitions

    def load_partition(self, partition_id: int) -> Dataset:
        """Return the samples of one client.

        Raises
        ------
        DataError
            If the data set cannot be split as asked.
        """
        if self._shares is None:
            rows = self.dataset.select_columns([self._label_column]).with_format("numpy")[:]
            generator = random_generator(self._seed, "partition")
            shares = self.assign(rows[self._label_column], generator)
            if not all(len(share) for share in shares):
                raise DataError(
                    f"{len(self.dataset)} samples are too few for {self.num_partitions} clients"
                )
            self._shares = shares
        return self.dataset.select(self._shares[partition_id])

    def assign(self, labels: Indices, generator: np.random.Generator) -> list[Indices]:
        """Return the positions of each client's samples; `labels` has shape (n,)."""
        classes, positions = np.unique(labels, return_inverse=True)
        counts = self.counts(classes, np.bincount(positions), generator)
        return deal(positions, counts, generator)

    def counts(
        self, classes: Indices, available: Indices, generator: np.random.Generator
    ) -> Indices:
        """Return how many samples of each class each client gets.

        Parameters
        ----------
        classes : ndarray
            Shape (K,), the classes in the data set.
        available : ndarray
            Shape (K,), samples of each.
        generator : numpy.random.Generator
            Makes the split's draws.

        Returns
        -------
        ndarray
            Shape (N, K), int64.
        """
        raise NotImplementedError


class EqualSharesPartitioner(SeededPartitioner):
    """`iid`: equal random shares.

    Flower's own `IidPartitioner` cuts the data set in its given order, and so is random only
    on data that somebody has shuffled before.
    """

    def assign(self, labels: Indices, generator: np.random.Generator) -> list[Indices]:
        """Return the positions of each client's samples; sizes differ by no more than one."""
        order = generator.permutation(len(labels))
        return [np.sort(share) for share in np.array_split(order, self.num_partitions)]


class DirichletPartitioner(SeededPartitioner):
    """`dirichlet`: each class is shared out by fractions from a Dirichlet distribution.

    PersFL §5 (DS-2, alpha 0.9), FedKMA §V (0.5 and 1), PerFed-CKT §5 (0.01). Flower's own
    `DirichletPartitioner` draws again until every client has the minimum, and gives up after
    ten draws, which with alpha 0.01 and 100 clients is always. Here clients below the
    minimum get random samples of the client that has most at that moment.

    Parameters
    ----------
    num_partitions, seed, label_column
        As in `SeededPartitioner`.
    alpha : float
        Concentration; the smaller, the more clients differ.
    minimum_size : int
        Fewest samples of a client.
    """

    def __init__(
        self,
        num_partitions: int,
        seed: int,
        alpha: float,
        minimum_size: int = 1,
        label_column: str = "label",
    ) -> None:
        super().__init__(num_partitions, seed, label_column)
        if alpha <= 0:
            raise DataError(f"alpha must be above 0, got {alpha}")
        self._alpha = alpha
        self._minimum_size = max(minimum_size, 1)

    def counts(
        self, classes: Indices, available: Indices, generator: np.random.Generator
    ) -> Indices:
        """Return the (N, K) numbers of samples; every sample has an owner."""
        clients, minimum = self.num_partitions, self._minimum_size
        if available.sum() < clients * minimum:
            raise DataError(
                f"{available.sum()} samples are too few for {clients} clients with at least "
                f"{minimum} each"
            )
        fractions = generator.dirichlet(np.full(clients, self._alpha), size=len(classes))
        ends = np.round(fractions.cumsum(axis=1) * available[:, None]).astype(np.int64)
        ends[:, -1] = available  # whatever the rounding of a sum of fractions says
        counts: Indices = np.diff(ends, axis=1, prepend=0).T
        for client in np.flatnonzero(counts.sum(axis=1) < minimum):
            while (missing := minimum - counts[client].sum()) > 0:
                sizes = counts.sum(axis=1)
                donor = sizes.argmax()
                moved = min(missing, sizes[donor] - minimum)
                gift = generator.multivariate_hypergeometric(counts[donor], moved)
                counts[donor] -= gift
                counts[client] += gift
        return counts


class TwoGroupsPartitioner(SeededPartitioner):
    """`two-groups`: all classes everywhere, one half of them three times as frequent.

    KT-pFL appendix B.1, case 1: in the first half of the clients each has 450 samples of each
    class of the first half and 150 of the others; in the second half it is the other way
    round. A smaller data set scales both numbers down by one factor.

    Parameters
    ----------
    num_partitions, seed, label_column
        As in `SeededPartitioner`.
    samples_per_class : int
        Samples of a frequent class for each client; a rare one has a third of it.
    """

    def __init__(
        self,
        num_partitions: int,
        seed: int,
        samples_per_class: int = 450,
        label_column: str = "label",
    ) -> None:
        super().__init__(num_partitions, seed, label_column)
        self._samples_per_class = samples_per_class

    def counts(
        self, classes: Indices, available: Indices, generator: np.random.Generator
    ) -> Indices:
        """Return the (N, K) numbers of samples."""
        second_group = np.arange(self.num_partitions) >= (self.num_partitions + 1) // 2
        second_half = np.arange(len(classes)) >= (len(classes) + 1) // 2
        frequent = second_group[:, None] == second_half
        wanted = np.where(frequent, self._samples_per_class, self._samples_per_class / 3)
        scale = min(1.0, (available / wanted.sum(axis=0)).min())
        # The tiny addition keeps a whole number whole that floating point puts just below it.
        counts: Indices = np.floor(wanted * scale + 1e-9).astype(np.int64)
        if counts.min() < 1:
            raise DataError(_runs_out(classes, available, np.full(len(classes), len(counts))))
        return counts


class ClassesPartitioner(SeededPartitioner):
    """`two-classes`, `k-classes`, `k-classes-grouped`: a few classes a client, equal totals.

    KT-pFL appendix B.1, case 2 (two classes, 300 samples each), PersFL §5 (DS-1), FedKMA §V
    (C = k; Fig. 7a for the groups). Every client has the same number of samples of each of
    its classes: as many as the scarcest class allows, and no more than `samples_per_class`.
    PersFL lets that number differ between a client's classes; the totals are equal either way.

    Parameters
    ----------
    num_partitions, seed, label_column
        As in `SeededPartitioner`.
    classes_per_client : int
        Classes of each client.
    samples_per_class : int
        Most samples of a class for each client, 0 for as many as there are.
    groups : int
        Clients that follow each other form this many groups, which share their classes;
        0 for none.
    """

    def __init__(
        self,
        num_partitions: int,
        seed: int,
        classes_per_client: int,
        samples_per_class: int = 0,
        groups: int = 0,
        label_column: str = "label",
    ) -> None:
        super().__init__(num_partitions, seed, label_column)
        if classes_per_client < 1:
            raise DataError(f"a client cannot have {classes_per_client} classes")
        if groups > num_partitions:
            raise DataError(f"{num_partitions} clients cannot form {groups} groups")
        self._classes_per_client = classes_per_client
        self._samples_per_class = samples_per_class
        self._groups = groups or num_partitions

    def counts(
        self, classes: Indices, available: Indices, generator: np.random.Generator
    ) -> Indices:
        """Return the (N, K) numbers of samples."""
        chosen = choose_classes(self._groups, len(classes), self._classes_per_client, generator)
        group = np.arange(self.num_partitions) * self._groups // self.num_partitions
        holds = chosen[group].astype(np.int64)
        owners = holds.sum(axis=0)
        size = (available[owners > 0] // owners[owners > 0]).min()
        if size < 1:
            raise DataError(_runs_out(classes, available, owners))
        if self._samples_per_class:
            size = min(size, self._samples_per_class)
        counts: Indices = holds * size
        return counts


class LognormalPartitioner(SeededPartitioner):
    """`lognormal-two-classes`: two classes a client, sizes from a log-normal distribution.

    PersFL §5 (DS-3, mu 0, sigma 2). Each client gets a least size plus its log-normal draw
    times one factor, the largest at which no class runs out; both halves of it are equal.
    The paper gives neither the factor nor the least size, without which a client with a small
    draw could not be split into train, validation and test.

    Parameters
    ----------
    num_partitions, seed, label_column
        As in `SeededPartitioner`.
    mu, sigma : float
        Mean and standard deviation of the logarithm of the sizes.
    minimum_size : int
        Fewest samples of a client.
    """

    def __init__(
        self,
        num_partitions: int,
        seed: int,
        mu: float = 0.0,
        sigma: float = 2.0,
        minimum_size: int = 1,
        label_column: str = "label",
    ) -> None:
        super().__init__(num_partitions, seed, label_column)
        self._mu = mu
        self._sigma = sigma
        self._least = max(1, -(-minimum_size // 2))  # of each of the two classes

    def counts(
        self, classes: Indices, available: Indices, generator: np.random.Generator
    ) -> Indices:
        """Return the (N, K) numbers of samples."""
        holds = choose_classes(self.num_partitions, len(classes), 2, generator)
        owners = holds.sum(axis=0)
        spare = available - owners * self._least
        if spare.min() < 0:
            raise DataError(_runs_out(classes, available, owners * self._least))
        draws = generator.lognormal(self._mu, self._sigma, self.num_partitions)
        wanted = draws @ holds  # of each class, by all its owners together
        factor = (spare[owners > 0] / wanted[owners > 0]).min()
        # Floor, after a tiny subtraction: rounding must never ask for a sample too many.
        sizes = self._least + np.floor(draws * factor * (1 - 1e-12)).astype(np.int64)
        counts: Indices = holds * sizes[:, None]
        return counts


def _runs_out(classes: Indices, available: Indices, needed: Indices) -> str:
    """Return the sentence that names the class with the largest shortfall."""
    worst = (available - needed).argmin()
    return (
        f"class {classes[worst]} runs out: the clients that get it need at least "
        f"{needed[worst]} samples, and the data set has {available[worst]}"
    )


@dataclass(frozen=True)
class PartitionOptions:
    """What the splits can be told; each reads what concerns it.

    Attributes
    ----------
    alpha : float
        Concentration, for `dirichlet`.
    classes_per_client : int
        Classes of a client, for `k-classes` and `k-classes-grouped`.
    groups : int
        Groups of clients, for `k-classes-grouped`.
    samples_per_class : int
        Most samples of a class that a client gets; 0 for the paper's number (450 in
        `two-groups`, 300 in `two-classes`, all there are in the `k-classes` splits).
    minimum_size : int
        Fewest samples of a client, for `dirichlet` and `lognormal-two-classes`.
    """

    alpha: float = 0.5
    classes_per_client: int = 4
    groups: int = 3
    samples_per_class: int = 0
    minimum_size: int = 20


PARTITIONS: dict[str, Callable[[int, int, PartitionOptions], SeededPartitioner]] = {
    "iid": lambda clients, seed, options: EqualSharesPartitioner(clients, seed),
    "dirichlet": lambda clients, seed, options: DirichletPartitioner(
        clients, seed, options.alpha, options.minimum_size
    ),
    "two-groups": lambda clients, seed, options: TwoGroupsPartitioner(
        clients, seed, options.samples_per_class or 450
    ),
    "two-classes": lambda clients, seed, options: ClassesPartitioner(
        clients, seed, 2, options.samples_per_class or 300
    ),
    "k-classes": lambda clients, seed, options: ClassesPartitioner(
        clients, seed, options.classes_per_client, options.samples_per_class
    ),
    "k-classes-grouped": lambda clients, seed, options: ClassesPartitioner(
        clients, seed, options.classes_per_client, options.samples_per_class, options.groups
    ),
    "lognormal-two-classes": lambda clients, seed, options: LognormalPartitioner(
        clients, seed, minimum_size=options.minimum_size
    ),
}
"""The splits, by the name that a run config gives them."""


def partition_indices(
    labels: Indices, name: str, num_clients: int, seed: int, **options: Any
) -> list[Indices]:
    """Split samples over clients.

    Parameters
    ----------
    labels : ndarray
        Shape (n,), int64, the class of each sample.
    name : str
        Name of the split, a key of `PARTITIONS`.
    num_clients : int
        N.
    seed : int
        Seed of the split.
    **options
        Fields of `PartitionOptions`.

    Returns
    -------
    list of ndarray
        N arrays of positions in `labels`, each sorted and not empty, no position in two.

    Raises
    ------
    DataError
        If the split is unknown or cannot be met.
    """
    if name not in PARTITIONS:
        raise DataError(f"unknown partition {name!r}; allowed are {', '.join(PARTITIONS)}")
    partitioner = PARTITIONS[name](num_clients, seed, PartitionOptions(**options))
    table = Dataset.from_dict({"label": labels, "index": np.arange(len(labels))})
    partitioner.dataset = table.with_format("numpy")
    return [partitioner.load_partition(client)[:]["index"] for client in range(num_clients)]
