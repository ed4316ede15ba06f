"""FedKMA: clients search architectures and share parameters by knowledge-sharing weights.

*FedKMA: Personalized Federated Learning via Knowledge-Sharing based Model structure
Adaptation*: the clients train one DARTS supernet (network weights omega, architecture weights
alpha). The server compares how the clients predict each class, every client turns the
comparison into its own row of the knowledge-sharing matrix M, and client i goes on with
``omega_i = Σ_j M[i, j] omega_j``, alpha and buffers alike.

Differences from the paper
--------------------------
- Eq. 12 prints ``KL(z_ik || e_k)`` for how well a client learns a class. That is infinite and
  does not depend on j; the prose, "how well a client learns class k", is
  ``-log softmax(z_jk)[k]``, which is used.
- Eq. 11 prints ``g(x) = 1 / e^{-x}``, which would favour the *least* similar clients. Weights
  here fall with the distance; ``fedkma.as-printed = true`` reproduces the print.
- Rows of M sum to 1; the paper is silent, and without it models would grow each round.
- A class that client j lacks counts as predicted uniformly. With lambda at 1/2 that is log K
  away from a sure and right prediction: a client with other classes is still weighed about 1/K
  of one with the same.
- Buffers, the running statistics of batch normalization, are mixed like weights, but the client
  estimates them anew from its own training data before it reports mean logits and, as with
  every method on a search network, before it is evaluated: mixed statistics fit no client.
- Half of a client's training data is for alpha, as in DARTS; ``fedkma.alpha-share`` changes it.
- A client that fails in training drops out of all rows; one that fails to send its row gets
  the uniform one.
"""

from collections.abc import Mapping
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.supercore import log
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import log_softmax

from strategies.base import (
    InvalidReplyError,
    Payload,
    PersonalizedStrategy,
    Reply,
    RunObserver,
    RunPlan,
    Settings,
    check_simplex,
)

SHARE_KNOWLEDGE = "share-knowledge"
"""Phase of the message that asks a client for its row of M."""

CLASS_LOGITS = "class-logits"
"""Name of a reply's mean logit vectors, (K, K), one row a class."""

CLASS_FLAGS = "class-flags"
"""Name of a reply's flags, (K,), 1 for a class that the client holds, else 0."""

FARTHEST = 1e6
"""Largest distance that is sent; far beyond it the weight of a client is 0 already."""


class FedKMASettings(Settings):
    """Settings of FedKMA.

    Attributes
    ----------
    similarity_weight : float
        lambda of Eq. 12, between how alike (1) and how well (0) clients predict.
    as_printed : bool
        Whether rows of M follow Eq. 11 to the letter.
    alpha_learning_rate, alpha_weight_decay : float
        Of Adam on the architecture weights, as in DARTS.
    alpha_share : float
        Share of the training samples that alpha steps see and omega steps do not, as in DARTS;
        0 lets both see all, which clients with little data need.
    """

    table = "fedkma"
    similarity_weight: float = Field(default=0.5, ge=0, le=1)
    as_printed: bool = False
    alpha_learning_rate: float = Field(default=3e-4, gt=0)
    alpha_weight_decay: float = Field(default=1e-3, ge=0)
    alpha_share: float = Field(default=0.5, ge=0, lt=1)


def irrelevancy(
    class_logits: NDArray[Any], class_flags: NDArray[Any], similarity_weight: float
) -> NDArray[np.float64]:
    """Return H (Eq. 12) for all pairs of clients and all classes at once.

    ``H[i,j,k] = lambda KL(q_ik || q_jk) + (1 - lambda) (-log q_jk[k])`` with
    ``q_ik = softmax(z_ik)``, and uniform where a client lacks class k.

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
    log_q = np.where(holds, log_softmax(class_logits.astype(np.float64), -1), -np.log(num_classes))
    q = np.exp(log_q)
    self_information = (q * log_q).sum(axis=-1)
    # Per class, the products over logits of all pairs are one matrix product.
    cross = np.einsum("ikc,jkc->ijk", q, log_q, optimize=True)
    divergence = self_information[:, None, :] - cross
    difficulty = -np.diagonal(log_q, axis1=1, axis2=2)
    return similarity_weight * divergence + (1 - similarity_weight) * difficulty[None]


def sharing_row(
    irrelevancies: NDArray[Any], label_distribution: NDArray[Any], as_printed: bool = False
) -> NDArray[np.float64]:
    """Return a client's row of M from its row of H and its own labels (Eq. 11).

    Parameters
    ----------
    irrelevancies : ndarray
        H_i, shape (N, K).
    label_distribution : ndarray
        p_i, shape (K,), sums to 1.
    as_printed : bool
        Whether weights rise with the distance, as the paper prints it.

    Returns
    -------
    ndarray
        M_i, shape (N,), sums to 1.
    """
    distances = irrelevancies @ label_distribution
    exponents = distances if as_printed else -distances
    weights = np.exp(exponents - exponents.max())
    return weights / weights.sum()


def mix_arrays(
    sharing: NDArray[Any], arrays: Mapping[int, Mapping[str, NDArray[Any]]]
) -> list[dict[str, NDArray[Any]]]:
    """Mix the clients' arrays by the rows of M, as one matrix product a name.

    Parameters
    ----------
    sharing : ndarray
        M, shape (R, R), rows sum to 1.
    arrays : mapping of int to mapping
        Arrays of the R clients by name, all alike in shape.

    Returns
    -------
    list of dict
        R sets of arrays, in the order of the clients.
    """
    givers = list(arrays.values())
    mixed: list[dict[str, NDArray[Any]]] = [{} for _ in givers]
    for name in givers[0]:
        stacked = np.stack([giver[name].reshape(-1) for giver in givers])
        product = sharing.astype(stacked.dtype) @ stacked
        for target, row in zip(mixed, product, strict=True):
            target[name] = row.reshape(givers[0][name].shape)
    return mixed


class FedKMA(PersonalizedStrategy):
    """FedKMA (Algorithm 1): models up, H down, rows of M up, mixed models down.

    Parameters
    ----------
    plan : RunPlan
        Clients, rounds, sampling and seed.
    settings : FedKMASettings
        The paper's hyperparameters.
    observer : RunObserver, optional
        Is told of every finished round.

    Attributes
    ----------
    sharing : ndarray
        M, shape (N, N), rows on the simplex; starts uniform. A client that fails in training
        keeps its row, and its column is zero in the others' rows.
    """

    settings_type = FedKMASettings
    needs_one_model = True
    settings: FedKMASettings

    def __init__(
        self, plan: RunPlan, settings: Settings, observer: RunObserver | None = None
    ) -> None:
        super().__init__(plan, settings, observer)
        self.sharing = np.full((plan.num_clients, plan.num_clients), 1 / plan.num_clients)
        self._personalized: dict[int, dict[str, Array]] = {}

    def train_payload(self, server_round: int, partition_id: int) -> Payload:
        """Send the client its mixed model; in the first round all start alike."""
        return self._personalized.get(partition_id, self.global_arrays)

    def evaluate_payload(self, server_round: int, partition_id: int) -> Payload:
        """Send the client its mixed model, the algorithm's output, to evaluate."""
        return self.train_payload(server_round, partition_id)

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, tuple[int, ...]]:
        """Ask for omega, alpha and buffers, and for the mean logits of each class."""
        classes = self.plan.num_classes
        model = {name: tuple(array.shape) for name, array in self.global_arrays.items()}
        return {**model, CLASS_LOGITS: (classes, classes), CLASS_FLAGS: (classes,)}

    def check_reply(self, reply: Reply) -> None:
        """Refuse flags other than 0 and 1, and rows of M that are no distribution."""
        if CLASS_FLAGS in reply.arrays and not np.isin(reply.arrays[CLASS_FLAGS], (0, 1)).all():
            raise InvalidReplyError(f"{CLASS_FLAGS} holds something other than 0 and 1")
        if "sharing" in reply.arrays:
            check_simplex(reply.arrays["sharing"], "sharing")

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> ArrayRecord | None:
        """Ask for the rows of M, then mix every replier's model by its row."""
        models = {
            n: {name: reply.arrays[name] for name in self.global_arrays}
            for n, reply in replies.items()
        }
        block = self.sharing_block(server_round, replies)
        self._keep_block(list(replies), block)
        for n, mixed in zip(replies, mix_arrays(block, models), strict=True):
            self._personalized[n] = {name: Array(values) for name, values in mixed.items()}
        return None

    def sharing_block(self, server_round: int, replies: dict[int, Reply]) -> NDArray[np.float64]:
        """Send each replier its row of H and gather the rows of M, shape (R, R).

        A client that sends none gets the uniform row.
        """
        logits = np.stack([reply.arrays[CLASS_LOGITS] for reply in replies.values()])
        flags = np.stack([reply.arrays[CLASS_FLAGS] for reply in replies.values()])
        distances = irrelevancy(logits, flags, self.settings.similarity_weight)
        rows = self.exchange(
            server_round,
            SHARE_KNOWLEDGE,
            payloads={
                # An infinity would turn into NaN where it meets a class of probability 0.
                n: {"irrelevancy": Array(np.minimum(row, FARTHEST).astype(np.float32))}
                for n, row in zip(replies, distances, strict=True)
            },
            expected={n: {"sharing": (len(replies),)} for n in replies},
        )
        block = np.full((len(replies), len(replies)), 1 / len(replies))
        for position, n in enumerate(replies):
            if n in rows:
                row = rows[n].arrays["sharing"].astype(np.float64)
                block[position] = row / row.sum()
            else:
                log(WARNING, "Round %d: client %d gets the uniform row", server_round, n)
        return block

    def matrices(self) -> dict[str, NDArray[Any]]:
        """Return M as ``sharing``, (N, N), and the mixed alphas, (N, edges, operations)."""
        architectures = {
            name: np.stack([self._array(n, name) for n in range(self.plan.num_clients)])
            for name in self.global_arrays
            if name.startswith("alpha")
        }
        return {"sharing": self.sharing.copy(), **architectures}

    def state(self) -> dict[str, NDArray[Any]]:
        """Return M and the mixed models that are due next round."""
        models = {
            f"model-{n}-{name}": array.numpy()
            for n, arrays in self._personalized.items()
            for name, array in arrays.items()
        }
        return {"sharing": self.sharing, **models}

    def restore(self, completed_rounds: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue with the matrix and the mixed models of a stopped run."""
        super().restore(completed_rounds, state)
        self.sharing = np.array(state["sharing"])
        self._personalized = {}
        for key, values in state.items():
            if key.startswith("model-"):
                _, n, name = key.split("-", 2)
                self._personalized.setdefault(int(n), {})[name] = Array(np.asarray(values))

    def _array(self, partition_id: int, name: str) -> NDArray[Any]:
        return self._personalized.get(partition_id, self.global_arrays)[name].numpy()

    def _keep_block(self, repliers: list[int], block: NDArray[Any]) -> None:
        self.sharing[repliers] = 0
        self.sharing[np.ix_(repliers, repliers)] = block


class FedNAS(FedKMA):
    """FedKMA without knowledge sharing: M uniform (the paper's ablation, manner 3)."""

    def sharing_block(self, server_round: int, replies: dict[int, Reply]) -> NDArray[np.float64]:
        """Weigh all repliers alike, without asking."""
        return np.full((len(replies), len(replies)), 1 / len(replies))
