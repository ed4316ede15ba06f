r"""KT-pFL: clients learn from personalized mixtures of soft predictions.

The server holds the knowledge coefficient matrix c (N, N), row = receiver, column = giver.
Client n learns from the teacher ``Σ_m c[n, m] S_m``, where S_m (P, K) are client m's soft
predictions on public samples. Models stay on the clients, so they may differ in architecture.

Differences from the paper
--------------------------
- Rows of c are projected onto the probability simplex after each step. The paper does not say so,
  but otherwise a teacher would not be a distribution.
- The step on c is the expectation of the mini-batch step of Eq. 7, so that its size does not
  depend on P. The mini-batch has ``coefficient-batch-size`` samples, 256 in the paper. (A sum over
  all P samples is up to 12 times as large; c then collapses to the diagonal, and clients learn only
  from themselves.)
- c is stepped before it mixes, as in the released implementation. In the paper (Fig. 1) the current
  c mixes and is then stepped, so that the first teachers are uniform;
  ``step-coefficients = "after-mixing"`` does this.
- There is one exchange per round, and ``accuracy`` is measured after local training, as in the
  authors' released implementation. The teacher of round t is distilled at the start of round
  t + 1. What Algorithm 1 returns, the model after distillation, is evaluated then, and after the
  last round by a message with the last teacher.
- Public samples, and the order of their batches, are drawn in each round as a function of seed and
  round. They are the same for all clients.
- With client sampling a teacher is mixed from the repliers only, with the client's row renormalized
  over them. Coefficients of absent clients do not change.
- The released implementation is not followed elsewhere. It fits c by squared error through
  ``softmax(5 w)``, which stays nearer to uniform. It has T = 10 and twice the rounds for KT-pFL,
  and T = 1 for the other methods. It averages the divergence over classes too. It has warm-up
  epochs, private batches of 16, 5,000 public samples and steps of 0.02. It leaves public images at
  0 to 255, as ``public-scaling = "raw"`` does. Its accuracy is a mean over batches of 8.
- The paper has no new clients. Here a new client trains and predicts, takes the step of Eq. 7 on
  its own row with the teachers of the training clients, and distills its mixture.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.mixing import require_weights
from strategies.core.probabilities import normalized_rows, project_onto_simplex
from strategies.core.replies import Arrays, Reply
from strategies.core.settings_groups import ANY_ON_NODES, OnNodes, SearchRange
from strategies.core.state import PairMatrix, with_means
from strategies.method import Results
from strategies.soft_predictions import (
    DISTILLATION_METRICS,
    DistillationSettings,
    SoftPredictionState,
    SoftPredictionStrategy,
)

PAPER = Paper(
    authors="J. Zhang, S. Guo, X. Ma, H. Wang, W. Xu, F. Wu",
    title="Parameterized Knowledge Transfer for Personalized Federated Learning",
    venue="NeurIPS",
    year=2021,
    arxiv="2111.02862",
)
"""The paper of KT-pFL and of its variants."""


class TeacherSettings(DistillationSettings):
    """Settings that KT-pFL shares with its variants and with FedMD.

    With the defaults predictions still differ at the temperature, and distillation, whose loss is
    nine times as large as without T², does not diverge. The values of the paper's B.2 (T = 10
    without T², one epoch at 0.01 in batches of 256) hardly move the weights; the presets of the
    paper use them.
    """

    table = "kt-pfl"
    temperature: Annotated[float, SearchRange(1.0, 10.0, log=True), OnNodes(0.1, 100)] = Field(
        default=3.0, gt=0
    )
    """T of the soft predictions."""
    distillation_learning_rate: Annotated[
        float, SearchRange(0.005, 0.3, log=True), OnNodes(0, 1)
    ] = Field(default=0.02, gt=0)
    """Step size of the distillation; it follows `learning_rate_schedule`."""


class KTpFLSettings(TeacherSettings):
    """Settings of KT-pFL."""

    table = "kt-pfl"
    knowledge_weight: Annotated[float, ANY_ON_NODES] = Field(default=1.0, ge=0)
    """lambda of Eq. 4, the weight of the knowledge term in the update of c."""
    rho: Annotated[float, ANY_ON_NODES] = Field(default=0.6, ge=0)
    """rho of Eq. 4, the weight of the penalty that pulls c towards 1/N."""
    coefficient_learning_rate: Annotated[float, SearchRange(0.003, 1.0, log=True), ANY_ON_NODES] = (
        Field(default=0.01, ge=0)
    )
    """eta_3 of Eq. 7, the step size on c. The knowledge term of a client also has its share of the
    data as a factor, about 1/N."""
    coefficient_batch_size: Annotated[int, ANY_ON_NODES] = Field(default=64, ge=1)
    """Size of the mini-batch xi_r of Eq. 7: the gradients of so many public samples add up to a
    step on c."""
    step_coefficients: Annotated[Literal["before-mixing", "after-mixing"], ANY_ON_NODES] = (
        "before-mixing"
    )
    """When c is stepped: before-mixing as in the released implementation, or after-mixing as in the
    paper, where teachers are mixed by the c of the previous round."""


def knowledge_gradient(
    coefficients: NDArray[Any],
    predictions: NDArray[Any],
    shares: NDArray[Any],
    smallest: float = 1e-12,
) -> NDArray[Any]:
    """Return the gradient in c of the knowledge term of Eq. 4, as two matrix products.

    The term is ``Σ_n D_n/D Σ_x KL(Σ_m c[n,m] S_m(x) || S_n(x))``.

    With ``t_n = Σ_m c[n,m] S_m`` the entry (n, m) is
    ``D_n/D Σ_x Σ_k S_m(x,k) (log t_n(x,k) - log S_n(x,k) + 1)``. Coefficients, with rows on the
    simplex, and the result are (N, N), predictions (N, P, K), and shares D_n/D (N,). Probabilities
    below `smallest` count as it in logarithms. Cost O(N² P K).
    """
    flat = predictions.reshape(len(predictions), -1)
    terms = coefficients.astype(flat.dtype) @ flat
    # Client by client, since logarithms of all would need as much memory as all predictions.
    for teacher, own in zip(terms, flat, strict=True):
        teacher[:] = _log_ratio(teacher, own, smallest) + 1
    return shares[:, None] * (terms @ flat.T)


def projected_step(
    block: NDArray[Any],
    shares: NDArray[Any],
    gradient: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]],
    knowledge_weight: float,
    rho: float,
    rate: float,
    num_clients: int,
) -> NDArray[Any]:
    """Take one projected gradient step on the repliers' coefficients (Eqs. 7 and 11).

    ``c <- c - rate (lambda ∇knowledge + 2 rho (c - 1/N))``, followed by the projection to rows with
    their previous sums, so that the weights of absent clients do not change. The repliers' rows and
    columns of c are (R, R), and shares D_n/D (R,). `gradient` returns that of the knowledge term,
    (R, R), for rows on the simplex and weights of the rows, (R,).
    """
    mass = block.sum(axis=1)
    weights = shares / np.where(mass > 0, mass, 1)
    knowledge = gradient(normalized_rows(block), weights)
    step = rate * (knowledge_weight * knowledge + 2 * rho * (block - 1 / num_clients))
    return project_onto_simplex(block - step, mass)


def _log_ratio(teacher: NDArray[Any], own: NDArray[Any], smallest: float) -> NDArray[Any]:
    # One logarithm instead of two, since it dominates the server time for few clients.
    ratio = np.maximum(teacher, smallest)
    ratio /= np.maximum(own, smallest)
    return np.log(ratio, out=ratio)


@dataclass(frozen=True)
class TeacherState(SoftPredictionState):
    """The teachers of the M clients that have trained, and how they are mixed.

    The last of the teachers, (M + 1, P, K), is that of all other clients; it is left out if there
    are none.
    """

    coefficients: PairMatrix
    """c, (N, N), rows on the simplex; starts at 1/N."""


class PersonalTeacherStrategy(SoftPredictionStrategy):
    """Every client has its own teacher, a mixture of all soft predictions.

    A method overrides `updated_block`, the rule for the coefficients of the mixtures.
    """

    record = SoftPredictionStrategy.record.derived(
        settings_type=TeacherSettings, evaluates=("distilled",), train_metrics=DISTILLATION_METRICS
    )
    teachers_are_personal = True
    state: TeacherState

    def begin(self, initial: Arrays) -> TeacherState:
        begun, plan = super().begin(initial), self.plan
        equal = PairMatrix.equal(plan.num_clients, plan.new_client_ids)
        return TeacherState(begun.releases, begun.teachers, equal)

    def with_more_clients(self) -> TeacherState:
        """Give clients that join 1/N in their rows and columns of c, and the mean teacher."""
        grown, size = super().with_more_clients(), self.plan.num_clients
        more = self.state.coefficients.with_equal_clients(size)
        teachers = with_means(grown.teachers, min(size, len(more.values) + 1))
        return TeacherState(grown.releases, teachers, more)

    def teacher_of(self, partition_id: int) -> NDArray[Any]:
        """Return the teacher of one client, (P, K)."""
        # A client that has not trained has place -1, and its teacher is the last one.
        teacher: NDArray[Any] = self.state.teachers[self.state.coefficients.places[partition_id]]
        return teacher

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> TeacherState:
        """Update the coefficients of the repliers, and mix the teachers of all clients."""
        repliers = list(replies)
        current = self.state.coefficients.with_members(repliers)
        predictions = self.stack_predictions(replies)
        shares = self.round.sizes(repliers) / self.round.sizes(self.round.trained).sum()
        block = self._new_block(current.at(repliers, repliers), predictions, shares)
        updated = current.changed(repliers, repliers, block)
        mixing = self.mixing_coefficients(current, updated)
        weights = mixing.at(_receivers(mixing), repliers)
        teachers = self.mix(normalized_rows(weights), predictions)
        return replace(self.state, coefficients=updated, teachers=teachers)

    def mixing_coefficients(self, current: PairMatrix, updated: PairMatrix) -> PairMatrix:
        """Return the coefficients that mix a round's teachers: the updated ones."""
        return updated

    def with_new_clients(self, step: int, replies: dict[int, Reply]) -> TeacherState:
        """Update each new client's row, and mix its teacher; other rows do not change.

        The server stores the teachers of the training clients, not their predictions. These
        teachers are mixed with the new client's predictions, without those of clients whose sizes
        are unknown.
        """
        before = self.state.coefficients
        coefficients = before.with_members(replies)
        teachers = self.state.teachers[before.places[_receivers(coefficients)]]
        joined = set(self.round.trained)
        trained = [n for n in before.members if n in joined]
        of_trained = teachers[coefficients.places[trained]]
        for n, own in zip(replies, self.stack_predictions(replies), strict=True):
            predictions = np.concatenate([of_trained, own[None]])
            members = [*trained, n]
            shares = self.round.sizes(members) / self.round.sizes(members).sum()
            block = self._new_block(coefficients.at(members, members), predictions, shares)
            coefficients = coefficients.changed([n], members, block[-1:])
            row = normalized_rows(block[-1:])
            teachers[coefficients.places[n]] = self.mix(row, predictions)[0]
        return replace(self.state, coefficients=coefficients, teachers=teachers)

    def updated_block(
        self, block: NDArray[Any], predictions: NDArray[Any], shares: NDArray[Any]
    ) -> NDArray[Any]:
        """Return new coefficients of the repliers, (R, R), from their rows and columns of c.

        Predictions are (R, P, K), and shares D_n/D (R,). Entries are not negative, and every row
        keeps its sum.
        """
        raise NotImplementedError

    def _new_block(
        self, block: NDArray[Any], predictions: NDArray[Any], shares: NDArray[Any]
    ) -> NDArray[Any]:
        """Return `updated_block` of a method, after checking what it promises."""
        sums, hook = block.sum(axis=1), f"{type(self).__name__}.updated_block"
        updated = self.updated_block(block, predictions, shares)
        return require_weights(hook, updated, block.shape, sums)

    def results(self) -> Results:
        return replace(super().results(), matrices=self.state.coefficients.named("coefficients"))


def _receivers(coefficients: PairMatrix) -> NDArray[np.int64]:
    """Return the clients of the teachers: those that have trained, and one of the others."""
    others = np.flatnonzero(coefficients.places < 0)
    return np.append(coefficients.members, others[:1])


class KTpFL(PersonalTeacherStrategy):
    """KT-pFL on soft predictions with learned coefficients (Algorithm 1)."""

    record = PersonalTeacherStrategy.record.derived(
        paper=PAPER, settings_type=KTpFLSettings, dp_sgd=True, takes_estimators=True
    )
    settings: KTpFLSettings

    def mixing_coefficients(self, current: PairMatrix, updated: PairMatrix) -> PairMatrix:
        """Return the updated coefficients, or the current ones if c is stepped after mixing."""
        return updated if self.settings.step_coefficients == "before-mixing" else current

    def updated_block(
        self, block: NDArray[Any], predictions: NDArray[Any], shares: NDArray[Any]
    ) -> NDArray[Any]:
        """Take one projected gradient step on the repliers' coefficients (Eq. 7).

        The paper's step uses a mini-batch xi_r; this is its expectation, the gradient over all
        P samples times ``|xi_r| / P`` with ``|xi_r| = min(coefficient_batch_size, P)``.
        """
        settings, samples = self.settings, predictions.shape[1]
        batch_share = min(settings.coefficient_batch_size, samples) / samples

        def gradient(rows: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
            smallest = settings.wire.smallest
            return batch_share * knowledge_gradient(rows, predictions, weights, smallest)

        return projected_step(
            block,
            shares,
            gradient,
            settings.knowledge_weight,
            settings.rho,
            settings.coefficient_learning_rate,
            self.plan.num_clients,
        )
