"""Assignment of models to clients, if the clients of a run do not share one model."""

from collections.abc import Sequence

import numpy as np

from strategies.core.randomness import random_generator

ASSIGNMENTS = ("cyclic", "blocks", "by-size")
"""Names of the rules of `assign_models`."""


def assign_models(
    models: Sequence[str],
    rule: str,
    num_clients: int,
    sizes: Sequence[int] | None = None,
    seed: int = 0,
) -> list[str]:
    """Return the name of every client's model, (N,).

    ``"cyclic"``: in turn. ``"blocks"``: the first clients get the first model, and so on, in blocks
    whose lengths differ by at most one. ``"by-size"``: random, with larger models, which come
    first, more likely for larger data sets (PerFed-CKT, section 5, gives no formula). Client n gets
    model ``m ~ Binomial(M - 1, 1 - u_n)`` of M; ``u_n`` is the share of clients with less data,
    where those with as much, including itself, count half.
    """
    if not models:
        raise ValueError("models is empty; name at least one")
    if num_clients < 1:
        raise ValueError(f"num_clients must be at least 1, got {num_clients}")
    clients = np.arange(num_clients)
    if rule == "cyclic":
        chosen = clients % len(models)
    elif rule == "blocks":
        chosen = clients * len(models) // num_clients
    elif rule == "by-size":
        ranks = _size_ranks(sizes, num_clients)
        chosen = random_generator(seed, "models").binomial(len(models) - 1, 1 - ranks)
    else:
        raise ValueError(f"unknown assignment {rule!r}; choose one of {', '.join(ASSIGNMENTS)}")
    return [models[int(index)] for index in chosen]


def _size_ranks(sizes: Sequence[int] | None, num_clients: int) -> np.ndarray:
    """Return u (N,) of the Notes above: ranks strictly between 0 and 1, equal for equal sizes."""
    if sizes is None:
        raise ValueError("assignment 'by-size' needs the size of every client's data set")
    values = np.asarray(sizes)
    if values.shape != (num_clients,) or values.min() < 0:
        raise ValueError(
            f"assignment 'by-size' needs {num_clients} sizes of at least 0, got {list(sizes)}"
        )
    ordered = np.sort(values)
    below = np.searchsorted(ordered, values, side="left")
    up_to = np.searchsorted(ordered, values, side="right")
    return (below + up_to) / (2 * num_clients)
