"""What KT-pFL's server does in a round, beside the matrix products that it cannot do without.

They are three: coefficients times predictions for the teachers in the gradient, what follows from
these times predictions for the gradient, and new coefficients times predictions for the teachers
that are sent.
"""

from collections.abc import Iterator

import numpy as np

from benchmarks.pairs import Result, in_turns
from strategies.core.membership import ClientInfo
from strategies.core.plan import RunPlan
from strategies.core.replies import Reply
from strategies.kt_pfl import KTpFL, KTpFLSettings
from strategies.soft_predictions import PREDICTIONS

PUBLIC, CLASSES = 3000, 10
"""P and K, as in the paper's experiments."""


def measure() -> Iterator[Result]:
    """Measure a round's aggregation, from valid replies to the next teachers."""
    for clients in (20, 100, 1000):
        yield server_step(clients)


def server_step(clients: int) -> Result:
    """Measure it with N clients that all reply."""
    generator = np.random.default_rng(0)
    predictions = generator.random((clients, PUBLIC, CLASSES), dtype=np.float32)
    predictions /= predictions.sum(axis=2, keepdims=True)
    replies = {n: Reply(n, {PREDICTIONS: own}, {}) for n, own in enumerate(predictions)}

    plan = RunPlan(num_clients=clients, num_classes=CLASSES, public_size=PUBLIC)
    strategy = KTpFL(plan, KTpFLSettings())
    strategy.begin({})
    strategy.members.clients = {n: ClientInfo(n, n, "mlp", num_examples=600) for n in replies}

    flat = predictions.reshape(clients, -1)
    coefficients = strategy.coefficients.astype(np.float32)

    def products() -> None:
        teachers = coefficients @ flat
        _ = teachers @ flat.T
        _ = coefficients @ flat

    return in_turns(
        f"KT-pFL's server step, N = {clients:,}",
        lambda: strategy.aggregate(1, replies),
        "its matrix products",
        products,
        at_most=3,
    )
