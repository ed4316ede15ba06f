"""FedProx (Li et al. 2020): the proximal step and its center. Limits are in `test_protocol`."""

import numpy as np
from by_hand import CHANGES, assert_rounds, gradient, training_data, witnessed


def test_clients_take_proximal_steps_and_the_server_averages_by_samples(small, tmp_path):
    """In round 2 the center is the model of round 1, not the one that the run began with."""
    small |= {**CHANGES, "strategy": "fedprox", "fedprox.mu": 1.5}
    run, _ = witnessed(small, tmp_path / "run")

    def end_of(center, n):
        weights = center
        for _ in range(3):
            pull = np.float32(1.5) * (weights - center)
            weights = weights - np.float32(0.2) * (
                gradient(weights, *training_data(small, n)) + pull
            )
        return weights

    assert_rounds(run, small, end_of)
