"""FedKMA: clients search architectures and mix parameters by knowledge-sharing weights.

X. Wang, Z. Wang, *Personalized Federated Learning via Knowledge Sharing-based Model Structure
Adaption*: the clients train one DARTS supernet (network weights omega, architecture weights
alpha). The server compares the clients' predictions for each class. Every client computes its row
of the knowledge-sharing matrix M from the comparison, and client i continues with
``omega_i = Σ_j M[i, j] omega_j``, and the same for alpha and buffers.

Differences from the paper
--------------------------
- Eq. 12 prints ``KL(z_ik || e_k)`` for how well a client learns a class. That is infinite and
  does not depend on j. The text says "how well a client learns class k", so
  ``-log softmax(z_jk)[k]`` is used.
- Eq. 11 prints ``g(x) = 1 / e^{-x}``, which would favor the *least* similar clients. Weights
  here decrease with the distance; ``fedkma.as-printed = true`` uses the printed formula.
- Rows of M sum to 1. The paper does not say so, but otherwise models would grow each round.
- A class that client j lacks counts as a uniform prediction. With lambda = 1/2 its distance from a
  confident correct prediction is log K, so a client with other classes gets about 1/K of the weight
  of a client with the same classes.
- Buffers, the running statistics of batch normalization, are mixed like weights, but the client
  re-estimates them from its training data before it reports mean logits and, as with every method
  on a supernet, before it is evaluated, since mixed statistics suit no client.
- ``fedkma.sharpness`` (beta) multiplies the distances; 1 is the paper. A larger value
  sharpens the rows of M, which absent classes flatten.
- alpha and omega steps see all training samples (``fedkma.alpha-share = 0``: Eq. 7, Algorithm 1
  line 20), where Eqs. 3 and 4 and DARTS have two halves: 0.5.
- alpha is trained by SGD with momentum, as §V-A says of both; ``fedkma.alpha-optimizer = "adam"``
  uses Adam as in DARTS. Step size and weight decay have their own settings, by default the paper's
  values for both, and the moments are reset in each round.
- A client that fails in training has weight 0 in all rows. A client that fails to send its row gets
  the uniform row.
- A new client trains from the initial model and then from its mixture with the last round's
  repliers, whose models do not change.
"""

from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.flower import log
from strategies.core.mixing import MIXINGS
from strategies.core.plan import Settings
from strategies.core.replies import Arrays, Due, InvalidReplyError, Reply
from strategies.core.search import SearchRange
from strategies.core.simplex import check_simplex, equal_weights
from strategies.parameters import Model, ParameterStrategy, mix_models, mixed_model

SHARE_KNOWLEDGE = "share-knowledge"
"""Phase of the message that asks a client for its row of M."""

CLASS_LOGITS = "class-logits"
"""Name of a reply's mean logit vectors, (K, K), one row per class."""

CLASS_FLAGS = "class-flags"
"""Name of a reply's flags, (K,), 1 for a class that the client holds, else 0."""

FARTHEST = 1e6
"""Largest distance that is sent; the weight of a client is 0 already far below it."""


class FedKMASettings(Settings):
    """Settings of FedKMA.

    Attributes
    ----------
    similarity_weight : float
        lambda of Eq. 12: 1 weights clients by the similarity of their predictions, 0 by their
        loss. Not used by ``fednas``.
    as_printed : bool
        Whether rows of M follow Eq. 11 as printed. Not used by ``fednas``.
    sharpness : float
        beta of the weights ``exp(-beta * distance)``; 1 in the paper. Not used by ``fednas``.
    alpha_optimizer : str
        Optimizer of the architecture weights: ``sgd`` with the run's momentum (§V-A), or ``adam``
        as in DARTS.
    alpha_learning_rate : float
        Step size on the architecture weights.
    alpha_weight_decay : float
        Weight decay of the architecture weights.
    alpha_share : float
        Share of the training samples that is reserved for the architecture weights, 0.5 in DARTS.
        With 0 both kinds of weights train on all samples (Eq. 7, Algorithm 1 line 20).
    """

    table = "fedkma"
    similarity_weight: float = Field(default=0.5, ge=0, le=1)
    as_printed: bool = False
    sharpness: Annotated[float, SearchRange(0.3, 30.0, log=True)] = Field(default=1.0, gt=0)
    alpha_optimizer: Literal["sgd", "adam"] = "sgd"
    alpha_learning_rate: float = Field(default=0.01, gt=0)
    alpha_weight_decay: float = Field(default=3e-4, ge=0)
    alpha_share: float = Field(default=0.0, ge=0, lt=1)


def irrelevancy(
    class_logits: NDArray[Any], class_flags: NDArray[Any], similarity_weight: float
) -> NDArray[np.float64]:
    """Return H (Eq. 12) for all pairs of clients and all classes at once.

    ``H[i,j,k] = lambda KL(q_ik || q_jk) + (1 - lambda) (-log q_jk[k])`` with
    ``q_ik = softmax(z_ik)``, or uniform if a client lacks class k.

    Parameters
    ----------
    class_logits : ndarray
        z, shape (N, K, K): client, class of the samples, logit.
    class_flags : ndarray
        Shape (N, K), nonzero where a client holds a class.
    similarity_weight : float
        lambda in [0, 1].

    Returns
    -------
    ndarray
        H, shape (N, N, K): receiver, giver, class.
    """
    num_classes = class_logits.shape[-1]
    holds = np.asarray(class_flags, dtype=bool)[..., None]
    log_q = np.where(holds, log_softmax(class_logits.astype(np.float64)), -np.log(num_classes))
    q = np.exp(log_q)
    self_information = (q * log_q).sum(axis=-1)
    # Per class, the products over logits of all pairs are one matrix product.
    cross = np.einsum("ikc,jkc->ijk", q, log_q, optimize=True)
    divergence = self_information[:, None, :] - cross
    difficulty = -np.diagonal(log_q, axis1=1, axis2=2)
    return similarity_weight * divergence + (1 - similarity_weight) * difficulty[None]


def log_softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """Return the logarithms of the softmax over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def sharing_row(
    irrelevancies: NDArray[Any],
    label_distribution: NDArray[Any],
    as_printed: bool = False,
    sharpness: float = 1.0,
) -> NDArray[np.float64]:
    """Return a client's row of M from its row of H and its label distribution (Eq. 11).

    Parameters
    ----------
    irrelevancies : ndarray
        H_i, shape (N, K).
    label_distribution : ndarray
        p_i, shape (K,), sums to 1.
    as_printed : bool
        Whether weights increase with the distance, as printed in the paper.
    sharpness : float
        beta, the factor of the distances; 1 in the paper.

    Returns
    -------
    ndarray
        M_i, shape (N,), sums to 1.
    """
    distances = sharpness * (irrelevancies @ label_distribution)
    exponents = distances if as_printed else -distances
    weights = np.exp(exponents - exponents.max())
    return weights / weights.sum()


class FedKMA(ParameterStrategy):
    """FedKMA (Algorithm 1): collects models, sends H, collects rows of M, sends mixed models.

    Attributes
    ----------
    sharing : ndarray
        M, shape (N, N), rows on the simplex; starts uniform. A client that fails in training
        keeps its row, and its column is zero in the others' rows.
    mixed : dict of str to ndarray
        The clients' mixed models by kind, shape (N, length); empty before the first round.
    last_replies : dict of int to Reply
        Replies of the last round if there are new clients; not part of the state.
    """

    paper = "Wang and Wang (FedKMA)"
    exchanged = "parameters and mean logits"
    color_family = "fedkma"
    settings_type = FedKMASettings
    kept = (*ParameterStrategy.kept, "sharing", "mixed")
    settings: FedKMASettings
    sharing: NDArray[np.float64]
    mixed: Model
    last_replies: Mapping[int, Reply]

    def begin(self, initial: Arrays) -> None:
        """Start with one model for all clients and uniform weights."""
        super().begin(initial)
        self.sharing = equal_weights(self.plan.num_clients, self.plan.new_client_ids)
        self.mixed = {}

    def model_for(self, partition_id: int) -> Model:
        """Return the client's mixed model, or the initial model before the first round."""
        if not self.mixed:
            return self.model
        return {kind: rows[partition_id] for kind, rows in self.mixed.items()}

    def extra_due(self) -> dict[str, Due]:
        """Require the mean logits of each class."""
        classes = self.plan.num_classes
        return {CLASS_LOGITS: Due((classes, classes)), CLASS_FLAGS: Due((classes,))}

    def check_reply(self, reply: Reply) -> None:
        """Refuse flags other than 0 and 1."""
        if not np.isin(reply.arrays[CLASS_FLAGS], (0, 1)).all():
            raise InvalidReplyError(f"{CLASS_FLAGS} holds values other than 0 and 1")

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> None:
        """Collect the rows of M, then mix every replier's model by its row."""
        repliers = list(replies)
        if self.plan.num_new and server_round == self.plan.num_server_rounds:
            self.last_replies = replies
        block = self.sharing_block(server_round, replies)
        self.sharing[repliers] = 0
        self.sharing[np.ix_(repliers, repliers)] = block
        models = [{kind: reply.arrays[kind] for kind in self.model} for reply in replies.values()]
        if not self.mixed:
            self.mixed = {
                kind: np.tile(v, (len(self.sharing), 1)) for kind, v in self.model.items()
            }
        for kind, mixed in mix_models(block, models, MIXINGS[self.plan.mixing]).items():
            self.mixed[kind][repliers] = mixed

    def sharing_block(self, server_round: int, replies: dict[int, Reply]) -> NDArray[np.float64]:
        """Return the rows of M of the repliers, shape (R, R)."""
        distances = self.distances(list(replies.values()))
        return self.sharing_rows(server_round, dict(zip(replies, distances, strict=True)))

    def distances(self, replies: Sequence[Reply]) -> NDArray[np.float64]:
        """Return H of some replies, shape (R, R, K)."""
        logits = np.stack([reply.arrays[CLASS_LOGITS] for reply in replies])
        flags = np.stack([reply.arrays[CLASS_FLAGS] for reply in replies])
        return irrelevancy(logits, flags, self.settings.similarity_weight)

    def sharing_rows(
        self, server_round: int, distances: Mapping[int, NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """Send clients their rows of H, each (S, K), and collect their rows of M, shape (R, S).

        A client that sends no row gets the uniform one.
        """
        givers = len(next(iter(distances.values())))
        rows = self.exchange(
            SHARE_KNOWLEDGE,
            payloads={
                # Infinity times a class probability of 0 would be NaN.
                n: {"irrelevancy": np.minimum(row, FARTHEST).astype(np.float32)}
                for n, row in distances.items()
            },
            due=lambda n: {"sharing": Due((givers,))},
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

    def welcome(self, step: int, replies: dict[int, Reply]) -> None:
        """Mix each new client's model with those of the last round's repliers by its row of M."""
        givers = list(self.last_replies.values())
        distances = {n: self.distances([*givers, reply])[-1] for n, reply in replies.items()}
        rows = self.sharing_rows(step, distances)
        for (n, reply), row in zip(replies.items(), rows, strict=True):
            models = [{kind: r.arrays[kind] for kind in self.model} for r in (*givers, reply)]
            for kind, mixed in mixed_model(models, row, MIXINGS[self.plan.mixing]).items():
                self.mixed[kind][n] = mixed

    def matrices(self) -> dict[str, NDArray[Any]]:
        """Return M as ``sharing``, (N, N), and the mixed ``alphas``, (N, a)."""
        alphas = {kind: rows.copy() for kind, rows in self.mixed.items() if kind == "alphas"}
        return {"sharing": self.sharing.copy(), **alphas}


class FedNAS(FedKMA):
    """FedKMA without knowledge sharing: M uniform (the paper's ablation, manner 3)."""

    paper = "Wang and Wang (FedKMA), manner 3"

    def sharing_rows(
        self, server_round: int, distances: Mapping[int, NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """Return uniform rows without asking the clients."""
        givers = len(next(iter(distances.values())))
        return np.full((len(distances), givers), 1 / givers)
