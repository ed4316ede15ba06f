"""The splits of `fedkd_flwr.data.registry.PARTITIONS` that give each client some of the classes."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.data.allocation import Indices, Supply, by_class_counts, runs_out
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.data.settings import DataSettings

TWO_CLASSES_SAMPLES = 300
"""Samples of a class for each client (KT-pFL appendix B.1, case 2)."""

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
    counts: Indices = holds * (min(size, most) if most else size)
    return counts


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
    result: Indices = holds + counts + (rank < missing)
    return result


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
