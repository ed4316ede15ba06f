"""Time the server's step in a round: KT-pFL's aggregation and PerFed-CKT's clustering.

KT-pFL is compared with the three matrix products that it needs: coefficients times predictions for
the teachers in the gradient, their derivatives times predictions for the gradient, and new
coefficients times predictions for the teachers that are sent.
"""

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.pairs import Result, time_alternately
from strategies.core.client_info import ClientInfo
from strategies.core.plan import RunPlan
from strategies.core.replies import Reply
from strategies.kt_pfl import KTpFL, KTpFLSettings
from strategies.perfed_ckt import cluster_predictions
from strategies.soft_predictions import PREDICTIONS

PUBLIC, CLASSES = 3000, 10
"""P and K, as in the paper's experiments."""

FEW_PUBLIC = 200
"""P with 5,000 clients: the default of a run."""

CLUSTERS = 4
"""c, the largest in PerFed-CKT's experiments."""


def measure() -> Iterator[Result]:
    """Measure the aggregation of a round, from valid replies to the next teachers."""
    for clients in (20, 100, 1000):
        yield time_aggregation(clients, PUBLIC)
    yield time_clustering(1000, 500)


def measure_large() -> Iterator[Result]:
    """Measure KT-pFL's step with 5,000 clients."""
    yield time_aggregation(5000, FEW_PUBLIC)


def time_aggregation(clients: int, public: int) -> Result:
    """Measure KT-pFL's step with replies of N clients for P samples."""
    predictions = random_predictions(clients, public)
    replies = {n: Reply(n, {PREDICTIONS: own}, {}) for n, own in enumerate(predictions)}

    plan = RunPlan(num_clients=clients, num_classes=CLASSES, public_size=public)
    strategy = KTpFL(plan, KTpFLSettings())
    state = strategy.begin({})
    strategy.state = state
    strategy.members.clients = {n: ClientInfo(n, n, "mlp", num_examples=600) for n in replies}

    flat = predictions.reshape(clients, -1)
    coefficients = state.coefficients.whole().astype(np.float32)

    def products() -> None:
        teachers = coefficients @ flat
        _ = teachers @ flat.T
        _ = coefficients @ flat

    return time_alternately(
        f"KT-pFL's server step, N = {clients:,}, P = {public:,}",
        lambda: strategy.aggregate(1, replies),
        "its matrix products alone",
        products,
        at_most=3,
    )


def time_clustering(clients: int, public: int) -> Result:
    """Measure PerFed-CKT's k-means over the soft predictions of N clients for P samples."""
    predictions = random_predictions(clients, public)
    name = f"PerFed-CKT's clusters, N = {clients:,}, P = {public:,}"
    return time_alternately(
        name,
        lambda: cluster_predictions(predictions, CLUSTERS, seed=0),
        "one second",
        lambda: time.sleep(1),
        at_most=2,
    )


def random_predictions(clients: int, public: int) -> NDArray[np.float32]:
    """Draw soft predictions, (N, P, K), whose rows sum to one."""
    generator = np.random.default_rng(0)
    predictions = generator.random((clients, public, CLASSES), dtype=np.float32)
    predictions /= predictions.sum(axis=2, keepdims=True)
    return predictions
