"""Splits of a data set over clients: the table in METHODS.md.

Every split but `equal_shares` says how many samples of each class each client gets; `deal` then
draws that many at random. No sample has two owners, every client has samples, and the same seed
gives the same split.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.data.catalogue import PARTITIONS, DataError
from fedkd_flwr.data.settings import DataSettings
from strategies.core.randomness import random_generator

Indices = NDArray[np.int64]
"""Positions of samples in a data set, or numbers of samples."""

Split = Callable[[Indices, int, DataSettings, np.random.Generator], list[Indices]]
"""From classes (n,), N, settings and a generator to the positions of each client's samples."""

TWO_GROUPS_SAMPLES = 450
"""Samples of a frequent class for each client (KT-pFL appendix B.1, case 1)."""

TWO_CLASSES_SAMPLES = 300
"""Samples of a class for each client (KT-pFL appendix B.1, case 2)."""

LOGNORMAL_SIGMA = 2.0
"""Standard deviation of the logarithm of the shares (PersFL §5, DS-3); their mean is 0."""

LOGNORMAL_FLOOR = (300, 600)
"""Least and largest floor of a class in `lognormal-two-classes`, before it is doubled."""


def partition_indices(
    labels: Indices, settings: DataSettings, num_clients: int, seed: int
) -> list[Indices]:
    """Split samples over clients.

    Parameters
    ----------
    labels : ndarray
        Shape (n,), int64, the class of each sample.
    settings : DataSettings
        Names the split, a key of `PARTITIONS`, and has its parameters.
    num_clients : int
        N.
    seed : int
        Seed of the split.

    Returns
    -------
    list of ndarray
        N arrays of positions in `labels`, each sorted and not empty, no position in two.

    Raises
    ------
    DataError
        If the split cannot be met.
    """
    split: Split = resolve_name(PARTITIONS[settings.partition])
    shares = split(labels, num_clients, settings, random_generator(seed, "partition"))
    if not all(map(len, shares)):
        raise DataError(f"{len(labels)} samples are too few for {num_clients} clients")
    return shares


@dataclass(frozen=True, eq=False)
class Stock:
    """What there is to hand out.

    Attributes
    ----------
    classes : ndarray
        Shape (K,), the classes in the data set.
    available : ndarray
        Shape (K,), samples of each.
    """

    classes: Indices
    available: Indices


Counts = Callable[[Stock, int, DataSettings, np.random.Generator], Indices]
"""From a stock, N, settings and a generator to samples of each class for each client, (N, K)."""


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
        N arrays of positions, each sorted; remaining samples are unused.
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
        raise DataError(
            f"a client cannot have {size} classes: the data set has {num_classes}; set "
            f"classes-per-client to at most {num_classes}, or partition to iid"
        )
    chosen = np.zeros((num_choosers, num_classes), dtype=bool)
    for row in chosen:
        # `row` is a view: filling it counts for the next chooser.
        row[np.lexsort((generator.random(num_classes), chosen.sum(axis=0)))[:size]] = True
    return chosen


def fill_up(counts: Indices, minimum: int, generator: np.random.Generator) -> Indices:
    """Fill clients below a minimum from all classes alike, each sample from a random donor.

    A client filled from one other would inherit the few classes of that one, and a predictor of
    its largest class would be nearly always right.

    Parameters
    ----------
    counts : ndarray
        Shape (N, K), samples of each class for each client, N times `minimum` or more in all.
    minimum : int
        Fewest samples of a client; no donor falls below it.
    generator : numpy.random.Generator
        Draws the donors, and the class where some have been given equally often.

    Returns
    -------
    ndarray
        Shape (N, K), columns with the sums they had.
    """
    filled = counts.copy()
    clients, classes = counts.shape
    for client in np.flatnonzero(counts.sum(axis=1) < minimum):
        received = np.zeros(classes, dtype=np.int64)
        for _ in range(minimum - counts[client].sum()):
            offers = filled * (filled.sum(axis=1) > minimum)[:, None]
            offered = offers.sum(axis=0)
            # The class given least so far, among those that are available.
            absent = (offered == 0).astype(np.int64)
            label = np.lexsort((generator.random((classes,)), received, absent))[0]
            donor = generator.choice(clients, p=offers[:, label] / offered[label])
            filled[donor, label] -= 1
            filled[client, label] += 1
            received[label] += 1
    return filled


def dealt(counts: Counts) -> Split:
    """Make a split of a function that says how many samples of each class each client gets."""

    @functools.wraps(counts)
    def split(
        labels: Indices, num_clients: int, settings: DataSettings, generator: np.random.Generator
    ) -> list[Indices]:
        classes, positions = np.unique(labels, return_inverse=True)
        stock = Stock(classes, np.bincount(positions))
        return deal(positions, counts(stock, num_clients, settings, generator), generator)

    return split


def equal_shares(
    labels: Indices, num_clients: int, settings: DataSettings, generator: np.random.Generator
) -> list[Indices]:
    """`iid`: equal random shares; sizes differ by no more than one.

    Flower's own `IidPartitioner` cuts the data set in its given order, and so is random only
    on data that are already shuffled.
    """
    order = generator.permutation(len(labels))
    return [np.sort(share) for share in np.array_split(order, num_clients)]


@dealt
def dirichlet(
    stock: Stock, num_clients: int, settings: DataSettings, generator: np.random.Generator
) -> Indices:
    """`dirichlet`: each class is shared out by fractions from a Dirichlet distribution.

    PersFL §5 (DS-2, alpha 0.9), FedKMA §V (0.5 and 1), PerFed-CKT §5 (0.01). Flower's own
    `DirichletPartitioner` draws again until every client has the minimum, and gives up after
    ten draws, which with alpha 0.01 and 100 clients is always. Here clients below the
    minimum are filled up from all classes alike. Every sample has an owner.
    """
    available, minimum = stock.available, settings.minimum_size
    if available.sum() < num_clients * minimum:
        raise DataError(
            f"{available.sum()} samples are too few for {num_clients} clients with at least "
            f"{minimum} each"
        )
    concentrations = np.full(num_clients, settings.alpha)
    fractions = generator.dirichlet(concentrations, size=len(available))
    ends = np.round(fractions.cumsum(axis=1) * available[:, None]).astype(np.int64)
    ends[:, -1] = available  # whatever the rounding of a sum of fractions says
    counts: Indices = np.diff(ends, axis=1, prepend=0).T
    return fill_up(counts, minimum, generator)


@dealt
def two_groups(
    stock: Stock, num_clients: int, settings: DataSettings, generator: np.random.Generator
) -> Indices:
    """`two-groups`: all classes everywhere, one half of them three times as frequent.

    KT-pFL appendix B.1, case 1: in the first half of the clients each has 450 samples of each
    class of the first half and 150 of the others; in the second half it is the other way
    round. A smaller data set scales both numbers down by one factor.
    """
    second_group = np.arange(num_clients) >= (num_clients + 1) // 2
    second_half = np.arange(len(stock.classes)) >= (len(stock.classes) + 1) // 2
    frequent = second_group[:, None] == second_half
    samples = settings.samples_per_class or TWO_GROUPS_SAMPLES
    wanted = np.where(frequent, samples, samples / 3)
    scale = min(1.0, (stock.available / wanted.sum(axis=0)).min())
    # The tiny addition keeps a whole number whole that floating point puts just below it.
    counts: Indices = np.floor(wanted * scale + 1e-9).astype(np.int64)
    if counts.min() < 1:
        raise DataError(_runs_out(stock, np.full(len(stock.classes), num_clients)))
    return counts


@dealt
def two_classes(
    stock: Stock, num_clients: int, settings: DataSettings, generator: np.random.Generator
) -> Indices:
    """`two-classes`: two classes per client, 300 samples of each (KT-pFL appendix B.1, case 2)."""
    samples = settings.samples_per_class or TWO_CLASSES_SAMPLES
    chosen = choose_classes(num_clients, len(stock.classes), 2, generator)
    return equal_counts(stock, chosen, samples)


@dealt
def k_classes(
    stock: Stock, num_clients: int, settings: DataSettings, generator: np.random.Generator
) -> Indices:
    """`k-classes`: a few classes per client, equal totals (PersFL §5, DS-1; FedKMA §V, C = k).

    PersFL lets the number of samples differ between a client's classes; the totals are equal
    either way.
    """
    size = settings.classes_per_client
    chosen = choose_classes(num_clients, len(stock.classes), size, generator)
    return equal_counts(stock, chosen, settings.samples_per_class)


@dealt
def k_classes_grouped(
    stock: Stock, num_clients: int, settings: DataSettings, generator: np.random.Generator
) -> Indices:
    """`k-classes-grouped`: clients that follow each other share their classes (FedKMA, Fig. 7a)."""
    groups = settings.groups
    if groups > num_clients:
        raise DataError(f"{num_clients} clients cannot form {groups} groups")
    chosen = choose_classes(groups, len(stock.classes), settings.classes_per_client, generator)
    group = np.arange(num_clients) * groups // num_clients
    return equal_counts(stock, chosen[group], settings.samples_per_class)


def equal_counts(stock: Stock, chosen: NDArray[np.bool_], most: int) -> Indices:
    """Give every client the same number of samples of each of its classes.

    Parameters
    ----------
    stock : Stock
        What there is; the scarcest class decides the number.
    chosen : ndarray
        Shape (N, K), who has which class.
    most : int
        Most samples of a class for each client, 0 for as many as there are.

    Returns
    -------
    ndarray
        Shape (N, K), samples of each class for each client.

    Raises
    ------
    DataError
        If a class has fewer samples than owners.
    """
    holds = chosen.astype(np.int64)
    owners = holds.sum(axis=0)
    size = (stock.available[owners > 0] // owners[owners > 0]).min()
    if size < 1:
        raise DataError(_runs_out(stock, owners))
    counts: Indices = holds * (min(size, most) if most else size)
    return counts


@dealt
def lognormal_two_classes(
    stock: Stock, num_clients: int, settings: DataSettings, generator: np.random.Generator
) -> Indices:
    """`lognormal-two-classes`: two classes per client, numbers with a log-normal part.

    PersFL §5 (DS-3, mu 0, sigma 2) names the distribution alone. The rest follows pFedMe
    (Dinh et al., NeurIPS 2020), whose data PersFL takes over: each class is cut into 2N shares,
    proportional to log-normal draws; a client wants one share of each of its two classes plus a
    uniform floor of 300 to 600 samples, both doubled. In pFedMe classes go around, and a client
    for whom a class has run out gets ten samples of it. Here its pair of classes is random, and
    the owners of a class that runs out share it in the proportions of what they want.
    """
    holds = choose_classes(num_clients, len(stock.classes), 2, generator)
    draws = generator.lognormal(0.0, LOGNORMAL_SIGMA, size=(2 * num_clients, len(stock.classes)))
    shares = (draws / draws.sum(axis=0))[:num_clients]
    floors = generator.integers(*LOGNORMAL_FLOOR, size=holds.shape, endpoint=True)
    wanted = 2 * holds * (np.floor(shares * stock.available) + floors)
    scale = np.minimum(1.0, stock.available / np.maximum(wanted.sum(axis=0), 1))
    # The tiny addition keeps a whole number whole that floating point puts just below it.
    counts: Indices = np.floor(wanted * scale + 1e-9).astype(np.int64)
    if (counts[holds] < 1).any():
        raise DataError(_runs_out(stock, holds.sum(axis=0)))
    return counts


def _runs_out(stock: Stock, needed: Indices) -> str:
    """Return the sentence that names the class with the largest shortfall."""
    worst = (stock.available - needed).argmin()
    return (
        f"class {stock.classes[worst]} runs out: the clients that get it need at least "
        f"{needed[worst]} samples, and the data set has {stock.available[worst]}; set fewer "
        "num-clients, or partition to iid"
    )
