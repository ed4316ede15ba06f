"""Splits of a data set over clients; `fedkd_flwr.data.registry.PARTITIONS` lists all splits.

Every split but `equal_shares` says how many samples of each class each client gets; `allocate` then
draws that many at random. No sample has two owners, every client has samples, and the same seed
gives the same split.
"""

from pkgutil import resolve_name

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.data.allocation import Indices, Split, Supply, by_class_counts, runs_out, too_few
from fedkd_flwr.data.registry import PARTITIONS, DataError
from fedkd_flwr.data.settings import DataSettings
from strategies.core.randomness import random_generator

TWO_GROUPS_SAMPLES = 450
"""Samples of a frequent class for each client (KT-pFL appendix B.1, case 1)."""


def partition_indices(
    labels: Indices, settings: DataSettings, num_clients: int, seed: int
) -> list[Indices]:
    """Split samples over clients: N sorted, disjoint arrays of positions, none empty."""
    split: Split = resolve_name(PARTITIONS[settings.partition])
    shares = split(labels, num_clients, settings, random_generator(seed, "partition"))
    if not all(map(len, shares)):
        raise DataError(
            f"{len(labels)} samples are too few for {num_clients} clients; set fewer num-clients"
        )
    return shares


def fill_up(counts: Indices, minimum: int, generator: np.random.Generator) -> Indices:
    """Fill clients below a minimum from all classes alike, each sample from a random donor.

    A client filled from one other would inherit the few classes of that one, and a predictor of its
    largest class would be nearly always right. Shapes (N, K). Columns keep their sums, and no donor
    falls below the minimum.
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


def equal_shares(
    labels: Indices, num_clients: int, settings: DataSettings, generator: np.random.Generator
) -> list[Indices]:
    """`iid`: equal random shares; sizes differ by no more than one.

    Flower's own `IidPartitioner` cuts the data set in its given order, and so is random only
    on data that are already shuffled.
    """
    order = generator.permutation(len(labels))
    return [np.sort(share) for share in np.array_split(order, num_clients)]


@by_class_counts
def dirichlet(
    supply: Supply, num_clients: int, settings: DataSettings, generator: np.random.Generator
) -> Indices:
    """`dirichlet`: each class is shared out by fractions from a Dirichlet distribution.

    PersFL §5 (DS-2, alpha 0.9), FedKMA §V (0.5 and 1), PerFed-CKT §5 (0.01). Flower's own
    `DirichletPartitioner` draws again until every client has the minimum, and gives up after
    ten draws, which with alpha 0.01 and 100 clients is always. Here clients below the
    minimum are filled up from all classes alike. Every sample has an owner.
    """
    available, minimum = supply.available, settings.minimum_size
    if available.sum() < num_clients * minimum:
        raise DataError(too_few(available.sum(), num_clients, minimum))
    concentrations = np.full(num_clients, settings.alpha)
    fractions = generator.dirichlet(concentrations, size=len(available))
    ends = np.round(fractions.cumsum(axis=1) * available[:, None]).astype(np.int64)
    ends[:, -1] = available  # whatever the rounding of a sum of fractions says
    counts: Indices = np.diff(ends, axis=1, prepend=0).T
    return fill_up(counts, minimum, generator)


@by_class_counts
def dirichlet_clients(
    supply: Supply, num_clients: int, settings: DataSettings, generator: np.random.Generator
) -> Indices:
    """`dirichlet-clients`: a client's class proportions are from a Dirichlet distribution.

    Hsu et al. 2019 (1909.06335) §3, which PerFed-CKT §5 names as the reference of its split: a
    client's proportions are from Dirichlet(alpha p), where p are the classes' shares of the data
    set. Sizes are equal, or log-normal (`size_sigma`) above the minimum. A class that runs out
    is divided at random among the samples that ask for it; the rest ask again for classes that
    are left, in the client's proportions.
    """
    total, minimum = int(supply.available.sum()), settings.minimum_size
    if total < num_clients * minimum:
        raise DataError(too_few(total, num_clients, minimum))
    proportions = generator.dirichlet(settings.alpha * supply.available / total, size=num_clients)
    shares = generator.lognormal(0.0, settings.size_sigma, size=num_clients)
    above = (total - num_clients * minimum) * shares / shares.sum()
    # The tiny addition keeps a whole number whole that floating point puts just below it.
    sizes = minimum + np.floor(above + 1e-9).astype(np.int64)
    return draw_classes(proportions, sizes, supply.available, generator)


def draw_classes(
    proportions: NDArray[np.float64],
    sizes: Indices,
    available: Indices,
    generator: np.random.Generator,
) -> Indices:
    """Draw each client's classes from its proportions, as far as there are samples of them.

    `proportions` (N, K) have rows on the simplex, `available` (K,) are the samples of each class.
    The result (N, K) has rows with the sums `sizes` (N,).
    """
    counts = np.zeros(proportions.shape, dtype=np.int64)
    while (missing := sizes - counts.sum(axis=1)).any():
        left = available - counts.sum(axis=0)
        # Every pass meets all wishes or empties another class.
        weights = proportions * (left > 0)
        weights[weights.sum(axis=1) == 0] = left  # nothing of the client's classes is left
        wishes = generator.multinomial(missing, weights / weights.sum(axis=1, keepdims=True))
        for label in np.flatnonzero(wishes.sum(axis=0) > left):
            wishes[:, label] = generator.multivariate_hypergeometric(wishes[:, label], left[label])
        counts += wishes
    return counts


@by_class_counts
def two_groups(
    supply: Supply, num_clients: int, settings: DataSettings, generator: np.random.Generator
) -> Indices:
    """`two-groups`: all classes everywhere, one half of them three times as frequent.

    KT-pFL appendix B.1, case 1: in the first half of the clients each has 450 samples of each
    class of the first half and 150 of the others; in the second half it is the other way
    round. A smaller data set scales both numbers down by one factor.
    """
    second_group = np.arange(num_clients) >= (num_clients + 1) // 2
    second_half = np.arange(len(supply.classes)) >= (len(supply.classes) + 1) // 2
    frequent = second_group[:, None] == second_half
    samples = settings.samples_per_class or TWO_GROUPS_SAMPLES
    if samples < 3:
        raise DataError(
            f"a third of samples-per-class = {samples} is less than one sample: set "
            "samples-per-class to at least 3"
        )
    wanted = np.where(frequent, samples, samples / 3)
    scale = min(1.0, (supply.available / wanted.sum(axis=0)).min())
    # The tiny addition keeps a whole number whole that floating point puts just below it.
    counts: Indices = np.floor(wanted * scale + 1e-9).astype(np.int64)
    if counts.min() < 1:
        raise DataError(runs_out(supply, np.full(len(supply.classes), num_clients)))
    return counts
