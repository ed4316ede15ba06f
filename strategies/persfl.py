"""PersFL: each client distills from the global model that suits it best.

Stage 1 is FedAvg. Whenever a client receives the global model, it computes its validation
cross-entropy and keeps the best model so far, its optimal teacher. Stage 2 is one message after the
last round: each client distills its teacher into a personalized model.

Differences from the paper
--------------------------
- The initial and the final global model are candidate teachers too.
- Eq. 4 is an unweighted mean, ``weighting = "uniform"``, which the presets set; the default
  is McMahan's.
- The paper specifies neither the grid nor the criterion. lambda in {0, 0.25, 0.5, 0.75, 1} and T in
  {1, 5, 25} are consistent with Table 5. The pair with the best validation accuracy is chosen; ties
  are broken by validation cross-entropy and then by the order of the grid.
- The paper does not say which epoch of stage 2 is used. Here it is the last one.
  ``persfl.validate-every = 1`` uses the best epoch on validation data, since plain SGD on two
  classes may end in a poor model.
- At lambda = 0 the temperature has no effect, and only the first temperature is run. At lambda = 1
  a student without batch normalization and dropout stays its teacher; it is not trained, and the
  first of its equal pairs is reported.
- With batch normalization, teachers and students are compared, and soft labels made, by the
  statistics with which models are evaluated.
- Updates of the model longer than ``update-cap`` times the median are clipped, 10 times by default.
- Eq. 3 prints KL(student || teacher), ``persfl.divergence = "reverse"``. Algorithm 1, line 19, has
  KL(teacher || student), which is the default.
- Cross-entropy (Eq. 7) exceeds KL(teacher || student) by the teacher's entropy, which does not
  depend on the student. So `PersFLGD` yields the models of `PersFL` up to rounding, and the
  differences in Table 6 must have another cause.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from logging import INFO
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.declarations import Data, Sent
from strategies.core.flower import log
from strategies.core.method_record import Need, Paper
from strategies.core.plan import PlanSettings, Settings
from strategies.core.replies import (
    Arrays,
    ClientInfo,
    ExpectedArray,
    InvalidReplyError,
    Metric,
    Reply,
    TooFewRepliesError,
)
from strategies.core.settings_groups import ANY_ON_NODES, Numbers, OnNodes, SearchRange, all_numbers
from strategies.core.state import unsaved
from strategies.fedavg import FedAvg
from strategies.method import Results
from strategies.parameters import Model, ParameterState

PAPER = Paper(
    authors="S. Divi, H. Farrukh, B. Celik",
    title="Unifying Distillation with Personalization in Federated Learning",
    year=2021,
    arxiv="2105.15191",
)
"""The paper of PersFL and of its variant."""

PERSONALIZE = "personalize"  # phase of the message that starts stage 2

CONSIDER = "consider-teacher"
"""Phase of a message with an earlier global model, for clients that join after stage 1."""

CHOSEN = partial(Metric, low=0, inputs=(Data.VALIDATION,), through_model=True)
"""A number that validation samples choose."""

PAIRS = "pairs"  # name of the table of all pairs, and of the array of counts in replies
DIVERGED = -1  # replaces the counts of a pair whose distillation diverged


class PersFLSettings(Settings):
    """Settings of PersFL's second stage."""

    table = "persfl"
    imitation: Annotated[
        Numbers, all_numbers(lambda share: 0 <= share <= 1, "in [0, 1]"), ANY_ON_NODES
    ] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Candidates for lambda, separated by commas, each in [0, 1]."""
    temperatures: Annotated[Numbers, all_numbers(lambda t: t > 0, "above 0"), OnNodes(0.1, 100)] = (
        1.0,
        5.0,
        25.0,
    )
    """Candidates for T, separated by commas, each above 0."""
    distillation_epochs: Annotated[int, OnNodes(1, 100)] = Field(default=10, ge=1)
    """Epochs of distillation for each pair (lambda, T) of the grid."""
    distillation_learning_rate: Annotated[
        float, SearchRange(0.003, 0.3, log=True), OnNodes(0, 1)
    ] = Field(default=0.01, gt=0)
    """Step size of the distillation (stage 2)."""
    validate_every: Annotated[int, ANY_ON_NODES] = Field(default=0, ge=0)
    """Validate every that many epochs of distillation and keep the best model; 0 validates after
    the last epoch only."""
    teacher: Annotated[Literal["optimal", "last"], ANY_ON_NODES] = "optimal"
    """``optimal`` for the global model with the best validation loss on the client, or ``last`` for
    the final global model (the ablation of Table 4)."""
    divergence: Annotated[Literal["forward", "reverse"], ANY_ON_NODES] = "forward"
    """``forward`` for KL(teacher || student), ``reverse`` for KL(student || teacher); `PersFLGD`
    has cross-entropy in its place."""

    def stretches(self) -> list[int]:
        """Return the numbers of epochs of stage 2 between validations."""
        stretch = self.validate_every or self.distillation_epochs
        starts = range(0, self.distillation_epochs, stretch)
        return [min(stretch, self.distillation_epochs - start) for start in starts]

    def grid(self) -> list[tuple[float, float]]:
        """Return the pairs (lambda, T) to try, in order."""
        return [
            (share, temperature)
            for share in self.imitation
            for temperature in (self.temperatures if share > 0 else self.temperatures[:1])
        ]


def check_pairs(reply: Reply, client: ClientInfo) -> None:
    """Refuse impossible counts of correct predictions in `PAIRS`, (pairs, 2)."""
    if PAIRS not in reply.arrays:
        return
    counts = reply.arrays[PAIRS]
    sizes = np.array([client.validation_size, client.test_size])
    is_counted = ((counts >= 0) & (counts <= sizes) & (sizes > 0)).all(axis=1)
    if not (is_counted | (counts == DIVERGED).all(axis=1)).all():
        raise InvalidReplyError(
            f"has impossible counts in {PAIRS}: it has {sizes[0]} validation and {sizes[1]} test "
            "samples"
        )


def pair_rows(
    grid: Sequence[tuple[float, float]], counts: NDArray[np.int32], client: ClientInfo
) -> list[dict[str, Any]]:
    """Return one row per pair (lambda, T) of a client, with accuracies None if it diverged."""
    rows = []
    for (imitation, temperature), (validated, tested) in zip(grid, counts.tolist(), strict=True):
        diverged = validated == DIVERGED
        rows.append(
            {
                "partition_id": client.partition_id,
                "lambda": imitation,
                "temperature": temperature,
                "validation_accuracy": None if diverged else validated / client.validation_size,
                "accuracy": None if diverged else tested / client.test_size,
            }
        )
    return rows


@dataclass(frozen=True)
class PersFLState(ParameterState):
    """The global model, and what stage 2 brought."""

    pairs: Sequence[dict[str, Any]] = unsaved()
    """Rows of the run's table ``pairs``: accuracy of every pair and client on validation data,
    which determines the choice, and on test data, which does not. They are not saved."""


class PersFL(FedAvg):
    """FedAvg in stage 1, one message to every client in stage 2 (Algorithm 1).

    Before the last round the global model is evaluated, then the personalized models.
    """

    record = FedAvg.record.derived(
        paper=PAPER,
        needs=(Need.ONE_ARCHITECTURE, Need.VALIDATION_DATA),
        settings_type=PersFLSettings,
        trains_new_clients=True,
        keeps_global_models=True,
        evaluates=("global",),
        sends=(
            *FedAvg.record.sends,
            Sent(PAIRS, inputs=(Data.VALIDATION, Data.TEST), through_model=True, required=False),
        ),
        evaluation_metrics=(
            CHOSEN("lambda", high=1),
            CHOSEN("temperature"),
            CHOSEN("teacher-round"),
            CHOSEN("teacher-accuracy", high=1, inputs=(Data.TEST,)),
        ),
    )
    settings: PersFLSettings
    state: PersFLState

    @classmethod
    def spanning_setting(cls, plan: PlanSettings, settings: Settings) -> str:
        """Return a setting that gives the last planned round a part in the results."""
        if plan.patience:
            return "patience"
        picks_teacher = PersFLSettings.model_validate(settings).teacher == "optimal"
        return "fraction-train" if picks_teacher and plan.sample_size < plan.num_training else ""

    def begin(self, initial: Arrays) -> PersFLState:
        return PersFLState(dict(initial))

    def aggregate_models(self, server_round: int, models: dict[int, Model]) -> PersFLState:
        """Average; after the last round, start stage 2 with the final global model."""
        model = self.average(models)
        is_last = server_round == self.plan.num_server_rounds
        pairs = self.rows_of_stage_2(server_round, model) if is_last else ()
        return replace(self.state, model=model, pairs=pairs)

    def rows_of_stage_2(self, server_round: int, model: Model) -> list[dict[str, Any]]:
        """Let all clients distill from their teachers, and return the rows of ``pairs``."""
        clients, grid = self.round.reachable, self.settings.grid()
        log(INFO, "Stage 2: %d pairs of lambda and T on each client", len(grid))
        personalized = self.personalized(clients, model)
        if len(personalized) < self.plan.min_replies:
            reasons = "; ".join(f"client {n}: {why}" for n, why in self.round.failures.items())
            raise TooFewRepliesError(
                f"Stage 2 has {len(personalized)} valid replies and min-replies is "
                f"{self.plan.min_replies} ({reasons}); {server_round - 1} rounds are complete. A "
                "resumed run continues with stage 2; raise round-timeout if it needs more time."
            )
        log(INFO, "Stage 2: %d of %d clients personalized", len(personalized), len(clients))
        return [
            {"round": server_round, **row}
            for n, reply in personalized.items()
            if PAIRS in reply.arrays
            for row in pair_rows(grid, reply.arrays[PAIRS], self.round.clients[n])
        ]

    def personalized(self, clients: Iterable[int], model: Model) -> dict[int, Reply]:
        """Let clients distill from their teachers; the final global model is a candidate."""
        pairs = {PAIRS: ExpectedArray((len(self.settings.grid()), 2), "int32")}
        return self.round.ask(
            PERSONALIZE,
            payloads=dict.fromkeys(clients, model),
            due=lambda n: pairs if self.round.clients[n].validation_size else {},
            check=lambda reply: check_pairs(reply, self.round.clients[reply.partition_id]),
        )

    def train_new_clients(self, step: int, new_clients: Sequence[int]) -> dict[int, Reply]:
        """Send them the global model of each round, and let them distill at the end."""
        if step == self.plan.num_server_rounds:
            return self.personalized(new_clients, self.state.model)
        model = {} if self.settings.teacher == "last" else self.round.global_model(step)
        if not model:
            return {n: Reply(n, {}, {}) for n in new_clients}
        return self.round.ask(CONSIDER, dict.fromkeys(new_clients, model), due=lambda n: {})

    def results(self) -> Results:
        return Results(tables={PAIRS: list(self.state.pairs)} if self.state.pairs else {})

    def evaluate_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send the global model in stage 1; in stage 2 the client has its personalized model."""
        if server_round == self.plan.num_server_rounds:
            return {}
        return super().evaluate_payload(server_round, partition_id)


class PersFLGD(PersFL):
    """PersFL with cross-entropy instead of KL divergence (§5.5, Eq. 7)."""

    record = PersFL.record.derived(paper=replace(PAPER, part="§5.5"))
