"""KT-pFL with the rule for c of its authors' released code instead of Eq. 7."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

import fedkd_flwr
from fedkd_flwr.clients.kt_pfl import KTpFLClient
from strategies.kt_pfl import KTpFL

AIM, FACTOR, SHARPNESS = 0.01, 5, 5
"""What a row's gradient is brought near, by which factor, and the factor in the softmax."""


class ReleasedKTpFL(KTpFL):
    """KT-pFL whose rows of c take a step on a squared error, and then a softmax.

    Rows belong to all clients: the released code has no client sampling.
    """

    record = KTpFL.record.derived(paper=KTpFL.record.paper)

    def updated_block(
        self, block: NDArray[np.float64], predictions: NDArray[np.float32], shares: object
    ) -> NDArray[np.float64]:
        """Return c (N, N) after a step, from predictions (N, P, K)."""
        flat = predictions.reshape(len(predictions), -1).astype(np.float64)
        error = 2 * (block @ flat - flat) @ flat.T / flat.shape[1]
        pull = 2 * self.settings.rho * (block - 1 / len(block)) / len(block)
        return softmax(SHARPNESS * (block - rescaled(error + pull)), axis=1)


def rescaled(gradients: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiply each row of (N, N) by powers of 5, until its absolute mean over N is about 0.01."""
    sizes = np.abs(gradients).sum(axis=1) / len(gradients)
    factors = np.ones_like(sizes)
    for _ in range(5):
        for factor in (1 / FACTOR, FACTOR):
            # The second comparison sees the sizes after the first.
            wrong = sizes > AIM if factor < 1 else sizes < AIM
            sizes[wrong] *= factor
            factors[wrong] *= factor
    return factors[:, None] * gradients


released = fedkd_flwr.register("kt-pfl-released", strategy=ReleasedKTpFL, client=KTpFLClient)
