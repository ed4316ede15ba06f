"""Methods in which the first two clients attack: well-formed replies that no check can refuse.

``flipped``: parameters are sent as the received ones minus ten times the update, and other arrays
times minus ten. ``poisoned``: each prediction is one-hot, for the class after the likeliest one.
"""

from dataclasses import replace
from typing import Any

import numpy as np

import fedkd_flwr
from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.methods import METHODS, Method
from strategies.soft_predictions import PREDICTIONS

INSIDERS = 2


def flipped(received: Arrays, arrays: Arrays) -> Arrays:
    """Return minus ten times each update."""
    return {
        name: own.dtype.type(11) * received[name] - own.dtype.type(10) * own
        if name in ("weights", "buffers")
        else own.dtype.type(-10) * own
        for name, own in arrays.items()
    }


def poisoned(received: Arrays, arrays: Arrays) -> Arrays:
    """Return one-hot predictions of wrong classes."""
    predictions = arrays[PREDICTIONS]
    classes = predictions.shape[1]
    return {PREDICTIONS: np.eye(classes, dtype=np.float32)[(predictions.argmax(1) + 1) % classes]}


def with_insiders(name: str, attack: Any) -> Method:
    """Return a built-in method whose first clients attack."""
    method = METHODS[name]

    class Insider(method.client):  # type: ignore[misc, name-defined]
        """A client that does what its method asks for, and alters its reply if it is an insider."""

        def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
            """Train as the method does, and attack."""
            reply: TrainReply = super().train(received, server_round, phase)
            if self.partition_id >= INSIDERS or not reply.arrays:
                return reply
            return replace(reply, arrays=attack(received, reply.arrays))

    return fedkd_flwr.register(f"{name}-{attack.__name__}", method.strategy, Insider)


fedavg = with_insiders("fedavg", flipped)
scaffold = with_insiders("scaffold", flipped)
feddyn = with_insiders("feddyn", flipped)
hypcluster = with_insiders("hypcluster", flipped)
kt_pfl_params = with_insiders("kt-pfl-params", flipped)
kt_pfl = with_insiders("kt-pfl", poisoned)
sim_pfl = with_insiders("sim-pfl", poisoned)
fedmd = with_insiders("fedmd", poisoned)
perfed_ckt = with_insiders("perfed-ckt", poisoned)
