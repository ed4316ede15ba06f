"""Splits of a data set over clients; `fedkd_flwr.data.registry.PARTITIONS` lists all splits.

Every split but `equal_shares` says how many samples of each class each client gets; `allocate` then
draws that many at random. No sample has two owners, every client has samples, and the same seed
gives the same split.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.data.registry import PARTITIONS, DataError
from fedkd_flwr.data.settings import DataSettings
from strategies.core.randomness import random_generator

Indices = NDArray[np.int64]  # positions of samples in a data set, or numbers of samples

Split = Callable[[Indices, int, DataSettings, np.random.Generator], list[Indices]]
"""From classes (n,), N, settings and a generator to the positions of each client's samples."""


@dataclass(frozen=True, eq=False)
class Supply:
    """The classes of samples to allocate, and how many there are of each: shape (K,)."""

    classes: Indices
    available: Indices


Counts = Callable[[Supply, int, DataSettings, np.random.Generator], Indices]
"""From a supply, N, settings and a generator to samples of each class for each client, (N, K)."""


def allocate(labels: Indices, counts: Indices, generator: np.random.Generator) -> list[Indices]:
    """Allocate random samples, so many of each class to each client.

    Labels (n,) are positions 0..K-1 in `counts` (N, K), of which a column sums to no more than the
    class holds. Return N sorted arrays of positions; remaining samples are unused.
    """
    clients, classes = counts.shape
    shares: list[list[Indices]] = [[] for _ in range(clients)]
    for label in range(classes):
        samples = generator.permutation(np.flatnonzero(labels == label))
        for share, part in zip(shares, np.split(samples, counts[:, label].cumsum()), strict=False):
            share.append(part)
    return [np.sort(np.concatenate(share)) for share in shares]


def by_class_counts(counts: Counts) -> Split:
    """Make a split of a function that says how many samples of each class each client gets."""

    @functools.wraps(counts)
    def split(
        labels: Indices, num_clients: int, settings: DataSettings, generator: np.random.Generator
    ) -> list[Indices]:
        classes, positions = np.unique(labels, return_inverse=True)
        supply = Supply(classes, np.bincount(positions))
        return allocate(positions, counts(supply, num_clients, settings, generator), generator)

    return split


def require_minimum(samples: int, num_clients: int, minimum: int) -> None:
    """Refuse a minimum that the data cannot meet."""
    if samples < num_clients * minimum:
        raise DataError(
            f"{samples} samples are too few for {num_clients} clients with at least {minimum} "
            f"each; set minimum-size to at most {samples // num_clients}, or fewer num-clients"
        )


def runs_out(supply: Supply, needed: Indices) -> str:
    """Return the sentence that names the class with the largest shortfall."""
    worst = (supply.available - needed).argmin()
    return (
        f"class {supply.classes[worst]} runs out: the clients that get it need at least "
        f"{needed[worst]} samples, and the data set has {supply.available[worst]}; set fewer "
        "num-clients, or partition to iid"
    )


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
    require_minimum(available.sum(), num_clients, minimum)
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
    require_minimum(total, num_clients, minimum)
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


TWO_CLASSES_SAMPLES = 300  # samples of a class for each client (KT-pFL appendix B.1, case 2)

LOGNORMAL_SIGMA = 2.0
"""Standard deviation of the logarithm of the shares (PersFL §5, DS-3); their mean is 0."""

LOGNORMAL_FLOOR = (300, 600)
"""Least and largest floor of a class in `lognormal-two-classes`, before it is doubled."""


def choose_classes(
    num_choosers: int, num_classes: int, size: int, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """Let each chooser have some random classes, all classes being chosen equally often.

    Each takes the classes chosen least so far, ties broken at random; so no class is chosen more
    than once oftener than another, and none runs out before its time. Shape (choosers, classes),
    `size` true values in each row. Raises `DataError` if there are not `size` classes.
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


def choose_two_classes(
    num_clients: int, num_classes: int, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """Let each client have two random classes, by `choose_classes`."""
    if num_classes < 2:
        raise DataError(
            "each client gets two classes, and the data set has one; set partition to iid"
        )
    return choose_classes(num_clients, num_classes, 2, generator)


@by_class_counts
def two_classes(
    supply: Supply, num_clients: int, settings: DataSettings, generator: np.random.Generator
) -> Indices:
    """`two-classes`: two classes per client, 300 samples of each (KT-pFL appendix B.1, case 2)."""
    samples = settings.samples_per_class or TWO_CLASSES_SAMPLES
    chosen = choose_two_classes(num_clients, len(supply.classes), generator)
    return equal_counts(supply, chosen, samples, generator)


@by_class_counts
def k_classes(
    supply: Supply, num_clients: int, settings: DataSettings, generator: np.random.Generator
) -> Indices:
    """`k-classes`: a few classes per client, equal totals (PersFL §5, DS-1; FedKMA §V, C = k).

    PersFL lets the number of samples differ between a client's classes, as does
    ``class-proportions = "random"``; the totals are equal either way.
    """
    size = settings.classes_per_client
    chosen = choose_classes(num_clients, len(supply.classes), size, generator)
    return PROPORTIONS[settings.class_proportions](
        supply, chosen, settings.samples_per_class, generator
    )


@by_class_counts
def k_classes_grouped(
    supply: Supply, num_clients: int, settings: DataSettings, generator: np.random.Generator
) -> Indices:
    """`k-classes-grouped`: clients that follow each other share their classes (FedKMA, Fig. 7a)."""
    groups = settings.groups
    if groups > num_clients:
        raise DataError(
            f"{num_clients} clients cannot form {groups} groups; set groups to at most "
            f"{num_clients}"
        )
    chosen = choose_classes(groups, len(supply.classes), settings.classes_per_client, generator)
    group = np.arange(num_clients) * groups // num_clients
    return PROPORTIONS[settings.class_proportions](
        supply, chosen[group], settings.samples_per_class, generator
    )


def equal_counts(
    supply: Supply, chosen: NDArray[np.bool_], most: int, _: np.random.Generator
) -> Indices:
    """Give every client the same number of samples of each of its classes.

    The scarcest class decides the number, which is at most `most` unless that is 0. `chosen` and
    the result are (N, K). Raises `DataError` if a class has fewer samples than owners.
    """
    holds = chosen.astype(np.int64)
    owners = holds.sum(axis=0)
    size = (supply.available[owners > 0] // owners[owners > 0]).min()
    if size < 1:
        raise DataError(runs_out(supply, owners))
    return holds * (min(size, most) if most else size)


def random_counts(
    supply: Supply, chosen: NDArray[np.bool_], most: int, generator: np.random.Generator
) -> Indices:
    """Give all clients equal totals, in random proportions of their classes.

    A client's proportions are uniform on the simplex. Each client gets one sample of each of its
    classes, and the rest in these proportions; the class in the largest demand decides the total.
    `most` limits the mean over a client's classes; 0 for as many as there are. All rows of `chosen`
    (N, K) have equally many classes, those of the result (N, K) equal sums. Raises `DataError` if a
    class has fewer than two samples for each of its owners: one that everybody gets, and one for
    rounding up.
    """
    holds = chosen.astype(np.int64)
    owners, size = holds.sum(axis=0), int(holds[0].sum())
    if (supply.available < 2 * owners).any():
        raise DataError(runs_out(supply, 2 * owners))
    # Exponential variables over their sum are uniform on the simplex.
    draws = generator.exponential(size=chosen.shape) * holds
    proportions = draws / draws.sum(axis=1, keepdims=True)
    demanded = proportions.sum(axis=0)
    spare = (supply.available - 2 * owners)[owners > 0]
    total = int((spare / demanded[owners > 0]).min())
    if most:
        total = min(total, (most - 1) * size)
    counts = np.floor(proportions * total).astype(np.int64)
    # What rounding down has left goes to the classes with the largest fractions.
    missing = total - counts.sum(axis=1, keepdims=True)
    fractions = np.where(chosen, proportions * total - counts, -1.0)
    rank = fractions.argsort(axis=1)[:, ::-1].argsort(axis=1)
    return holds + counts + (rank < missing)


PROPORTIONS: dict[str, Callable[..., Indices]] = {"equal": equal_counts, "random": random_counts}
"""How a client's samples are shared among its classes, by the value of ``class-proportions``."""


@by_class_counts
def lognormal_two_classes(
    supply: Supply, num_clients: int, settings: DataSettings, generator: np.random.Generator
) -> Indices:
    """`lognormal-two-classes`: two classes per client, numbers with a log-normal part.

    PersFL §5 (DS-3, mu 0, sigma 2) names the distribution alone. The rest follows pFedMe
    (Dinh et al., NeurIPS 2020), whose data PersFL takes over: each class is cut into 2N shares,
    proportional to log-normal draws; a client wants one share of each of its two classes plus a
    uniform floor of 300 to 600 samples, both doubled. In pFedMe classes go around, and a client
    for whom a class has run out gets ten samples of it. Here its pair of classes is random, and
    the owners of a class that runs out share it in the proportions of what they want.
    """
    holds = choose_two_classes(num_clients, len(supply.classes), generator)
    draws = generator.lognormal(0.0, LOGNORMAL_SIGMA, size=(2 * num_clients, len(supply.classes)))
    shares = (draws / draws.sum(axis=0))[:num_clients]
    floors = generator.integers(*LOGNORMAL_FLOOR, size=holds.shape, endpoint=True)
    wanted = 2 * holds * (np.floor(shares * supply.available) + floors)
    scale = np.minimum(1.0, supply.available / np.maximum(wanted.sum(axis=0), 1))
    # The tiny addition keeps a whole number whole that floating point puts just below it.
    counts: Indices = np.floor(wanted * scale + 1e-9).astype(np.int64)
    if (counts[holds] < 1).any():
        raise DataError(runs_out(supply, holds.sum(axis=0)))
    return counts
