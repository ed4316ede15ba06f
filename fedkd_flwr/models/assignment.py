"""Assignment of models to clients, if the clients of a run do not share one model."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from strategies.core.randomness import random_generator

ASSIGNMENTS = ("cyclic", "blocks", "by-size")
"""Names of the rules of `assign_models`."""


def assign_models(
    models: Sequence[str],
    rule: str,
    num_clients: int,
    sizes: Sequence[int] = (),
    seed: int = 0,
) -> list[str]:
    """Return the name of every client's model.

    Parameters
    ----------
    models : sequence of str
        The models to assign. For ``"by-size"``, in order from the largest to the smallest.
    rule : str
        One of `ASSIGNMENTS`.

        - ``"cyclic"``: the models in turn, starting again after the last.
        - ``"blocks"``: the first clients get the first model, the next the second, and so on,
          in blocks whose lengths differ by at most one.
        - ``"by-size"``: random, with larger models more likely for larger data sets
          (PerFed-CKT, section 5); see Notes.
    num_clients : int
        Number of clients N, at least 1.
    sizes : sequence of int
        Number of samples of each client (N,), for ``"by-size"``.
    seed : int
        Seed of the run, for ``"by-size"``.

    Returns
    -------
    list of str
        A model for each partition-id (N,).

    Notes
    -----
    PerFed-CKT gives no formula. Here, with M models, client n gets model
    ``m ~ Binomial(M - 1, 1 - u_n)``, where model 0 is the largest. ``u_n`` is the rank of the
    client's size between 0 and 1: the share of clients with less data, where clients with the
    same amount, including itself, count half. For two models the larger one has probability
    ``u_n``; for any number, every model has the same expected share of the clients, close to
    ``1 / M`` (exactly so for one or two models), unless many sizes are equal.
    """
    clients = np.arange(num_clients)
    if rule == "cyclic":
        chosen = clients % len(models)
    elif rule == "blocks":
        chosen = clients * len(models) // num_clients
    else:
        ranks = _size_ranks(np.asarray(sizes))
        chosen = random_generator(seed, "models").binomial(len(models) - 1, 1 - ranks)
    return [models[int(index)] for index in chosen]


def _size_ranks(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return u (N,) of the Notes above: ranks strictly between 0 and 1, equal for equal sizes."""
    ordered = np.sort(sizes)
    below = np.searchsorted(ordered, sizes, side="left")
    up_to = np.searchsorted(ordered, sizes, side="right")
    return (below + up_to) / (2 * len(sizes))
