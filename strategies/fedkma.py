"""FedKMA: clients search architectures and mix parameters by knowledge-sharing weights.

The clients train one DARTS supernet (network weights omega, architecture weights alpha). The
server compares the clients' predictions for each class. Every client computes its row of the
knowledge-sharing matrix M from the comparison, and client i continues with
``omega_i = Σ_j M[i, j] omega_j``, and the same for alpha and buffers.

Differences from the paper
--------------------------
- Eq. 12 prints ``KL(z_ik || e_k)`` for how well a client learns a class. That is infinite and
  does not depend on j. The text says "how well a client learns class k", so
  ``-log softmax(z_jk)[k]`` is used.
- Eq. 11 prints ``g(x) = 1 / e^{-x}``, which would favor the *least* similar clients. Weights
  here decrease with the distance; ``fedkma.as-printed = true`` uses the printed formula.
- Rows of M sum to 1. The paper does not say so, but otherwise models would grow each round.
- The paper does not say what H is for a class that client j lacks. By default j counts as
  predicting uniformly. With lambda = 1/2 its distance from a confident correct prediction is log K,
  so a client with other classes gets about 1/K of the weight of a client with the same classes.
  ``fedkma.absent = "excluded"`` leaves the class out for that pair; a client without a common
  class gets weight 0. ``"farthest"`` takes the largest H of the class, over all pairs.
- Buffers, the running statistics of batch normalization, are mixed like weights. Mixed statistics
  fit no client, so it re-estimates them from its training data before it reports mean logits. As
  with every method on a supernet, it does the same before it is evaluated.
- ``fedkma.sharpness`` (beta) multiplies the distances; 1 is the paper. A larger value
  sharpens the rows of M, which absent classes flatten.
- alpha and omega steps see all training samples (``fedkma.alpha-share = 0``: Eq. 7, Algorithm 1
  line 20), where Eqs. 3 and 4 and DARTS have two halves: 0.5.
- alpha is trained by SGD with momentum, as §V-A says of both; ``fedkma.alpha-optimizer = "adam"``
  uses Adam as in DARTS. Step size and weight decay have their own settings, by default the paper's
  values for both, and the moments are reset in each round.
- Updates longer than ``update-cap`` times the median are clipped, 10 times by default.
- A client that fails in training has weight 0 in all rows. A client that fails to send its row gets
  the uniform row.
- A new client trains from the initial model and then from its mixture with the last round's
  repliers, whose models do not change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import WARNING
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.declarations import Sent
from strategies.core.flower import log
from strategies.core.method_record import Paper
from strategies.core.probabilities import check_simplex, softmax
from strategies.core.replies import Arrays, ExpectedArray, InvalidReplyError, Reply
from strategies.core.settings_groups import ANY_ON_NODES, SearchRange
from strategies.supernets import SearchSettings, SupernetStrategy

PAPER = Paper(
    authors="X. Wang, Z. Wang",
    title="Personalized Federated Learning via Knowledge Sharing-based Model Structure Adaption",
)
"""The paper of FedKMA; its text does not say when it appeared."""

SHARE_KNOWLEDGE = "share-knowledge"  # phase of the message that asks a client for its row of M
CLASS_LOGITS = "class-logits"  # name of a reply's mean logit vectors, (K, K), one row per class

CLASS_FLAGS = "class-flags"
"""Name of a reply's flags, (K,), 1 for a class that the client holds, else 0."""

FARTHEST = 1e6  # largest distance that is sent; the weight of a client is 0 already far below it

EXCLUDED = -1.0
"""Stands in H, whose numbers are not negative, for a class that does not count for a pair."""


class FedKMASettings(SearchSettings):
    """Settings of FedKMA."""

    table = "fedkma"
    similarity_weight: Annotated[float, ANY_ON_NODES] = Field(default=0.5, ge=0, le=1)
    """lambda of Eq. 12: 1 weights clients by the similarity of their predictions, 0 by their
    loss."""
    as_printed: Annotated[bool, ANY_ON_NODES] = False
    """Whether rows of M follow Eq. 11 as the paper prints it, which gives the least similar clients
    the largest weights."""
    sharpness: Annotated[float, SearchRange(0.3, 30.0, log=True), ANY_ON_NODES] = Field(
        default=1.0, gt=0
    )
    """beta of the weights ``exp(-beta * distance)``; 1 in the paper."""
    absent: Annotated[Literal["uniform", "excluded", "farthest"], ANY_ON_NODES] = "uniform"
    """How a class counts that another client lacks: ``uniform`` as a uniform prediction,
    ``excluded`` not at all, ``farthest`` as the largest distance of a pair for that class."""


def irrelevancy(
    class_logits: NDArray[Any], class_flags: NDArray[Any], similarity_weight: float
) -> NDArray[np.float64]:
    """Return H (Eq. 12) for all pairs of clients and all classes at once.

    ``H[i,j,k] = lambda KL(q_ik || q_jk) + (1 - lambda) (-log q_jk[k])`` with
    ``q_ik = softmax(z_ik)``, or uniform if a client lacks class k. Logits z (N, K, K) are by
    client, class of the samples and logit; flags (N, K) are not 0 where a client holds a class. H
    (N, N, K) is by receiver, giver and class.
    """
    from scipy.special import log_softmax  # deferred: clients import this module

    num_classes = class_logits.shape[-1]
    holds = np.asarray(class_flags, dtype=bool)[..., None]
    log_held = log_softmax(class_logits.astype(np.float64), axis=-1)
    log_q = np.where(holds, log_held, -np.log(num_classes))
    q = np.exp(log_q)
    self_information = (q * log_q).sum(axis=-1)
    # Per class, the products over logits of all pairs are one matrix product.
    cross = np.einsum("ikc,jkc->ijk", q, log_q, optimize=True)
    divergence = self_information[:, None, :] - cross
    difficulty = -np.diagonal(log_q, axis1=1, axis2=2)
    return similarity_weight * divergence + (1 - similarity_weight) * difficulty[None]


def with_absent(
    irrelevancies: NDArray[Any], class_flags: NDArray[Any], absent: str
) -> NDArray[np.float64]:
    """Return H (N, N, K) with what `absent` says for classes that givers lack by flags (N, K)."""
    of_absent = {
        "uniform": irrelevancies,
        "excluded": EXCLUDED,
        "farthest": irrelevancies.max(axis=(0, 1)),
    }
    return np.where(np.asarray(class_flags, dtype=bool), irrelevancies, of_absent[absent])


def sharing_row(
    irrelevancies: NDArray[Any],
    label_distribution: NDArray[Any],
    as_printed: bool = False,
    sharpness: float = 1.0,
) -> NDArray[np.float64]:
    """Return a client's row of M, (N,), from its row of H and its label distribution (Eq. 11).

    H_i is (N, K); where it is `EXCLUDED`, the distribution p_i (K,) is renormalized over the other
    classes. `sharpness` is beta, the factor of the distances. M_i sums to 1.
    """
    counts = irrelevancies != EXCLUDED
    sums = np.where(counts, irrelevancies, 0) @ label_distribution
    shares = np.where(counts.all(axis=1), 1, counts @ label_distribution)
    distances = sharpness * np.where(shares > 0, sums / np.where(shares > 0, shares, 1), FARTHEST)
    return softmax(distances if as_printed else -distances)


class FedKMA(SupernetStrategy):
    """FedKMA (Algorithm 1): collects models, sends H, collects rows of M, sends mixed models."""

    record = SupernetStrategy.record.derived(
        paper=PAPER,
        exchanged="parameters and mean logits",
        settings_type=FedKMASettings,
        sends=(
            *SupernetStrategy.record.sends,
            Sent(CLASS_LOGITS, through_model=True),
            Sent(CLASS_FLAGS),
            Sent("sharing"),
        ),
    )
    settings: FedKMASettings

    def extra_expected_arrays(self) -> dict[str, ExpectedArray]:
        classes = self.plan.num_classes
        return {
            CLASS_LOGITS: ExpectedArray((classes, classes)),
            CLASS_FLAGS: ExpectedArray((classes,)),
        }

    def check_reply(self, reply: Reply) -> None:
        if not np.isin(reply.arrays[CLASS_FLAGS], (0, 1)).all():
            raise InvalidReplyError(f"{CLASS_FLAGS} holds values other than 0 and 1")

    def sharing_rows(self, server_round: int, replies: dict[int, Reply]) -> NDArray[np.float64]:
        """Send the repliers their rows of H, and collect their rows of M, shape (R, R)."""
        distances = self.distances(list(replies.values()))
        return self.answered_rows(server_round, dict(zip(replies, distances, strict=True)))

    def new_sharing_rows(self, step: int, replies: dict[int, Reply]) -> NDArray[np.float64]:
        """Send new clients H to `last_replies` and themselves, and collect rows, (R, L + 1)."""
        distances = {
            n: self.distances([*self.state.last_replies, reply])[-1] for n, reply in replies.items()
        }
        return self.answered_rows(step, distances)

    def distances(self, replies: Sequence[Reply]) -> NDArray[np.float64]:
        """Return H of some replies, shape (R, R, K)."""
        logits = np.stack([reply.arrays[CLASS_LOGITS] for reply in replies])
        flags = np.stack([reply.arrays[CLASS_FLAGS] for reply in replies])
        as_uniform = irrelevancy(logits, flags, self.settings.similarity_weight)
        return with_absent(as_uniform, flags, self.settings.absent)

    def answered_rows(
        self, server_round: int, distances: Mapping[int, NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """Send clients their rows of H, (S, K), and collect rows of M, (R, S), or uniform ones."""
        givers = len(next(iter(distances.values())))
        rows = self.round.ask(
            SHARE_KNOWLEDGE,
            payloads={
                # Infinity times a class probability of 0 would be NaN.
                n: {"irrelevancy": np.minimum(row, FARTHEST).astype(np.float32)}
                for n, row in distances.items()
            },
            due=lambda n: {"sharing": ExpectedArray((givers,))},
            check=lambda reply: check_simplex(reply.arrays["sharing"], "sharing"),
        )
        block = np.full((len(distances), givers), 1 / givers)
        for position, n in enumerate(distances):
            if n in rows:
                row = rows[n].arrays["sharing"].astype(np.float64)
                block[position] = row / row.sum()
            else:
                log(WARNING, "Round %d: client %d gets the uniform row", server_round, n)
        return block


class FedKMAUniform(SupernetStrategy):
    """FedKMA without knowledge sharing: M uniform (the paper's ablation, manner 3).

    The paper's Table III calls this FedNAS, and has the same numbers in its row of SPIDER. The
    method of He et al. is `strategies.fednas`.
    """

    record = SupernetStrategy.record.derived(paper=replace(PAPER, part="manner 3"))

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send equal mixtures as the same arrays, so that traffic counts them once."""
        mixed = self.model_for(partition_id)
        values = tuple(vector.tobytes() for vector in mixed.values())
        return self.round.once(values, lambda: mixed)
