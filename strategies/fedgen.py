"""FedGen: a generator of features on the server regularizes the clients' local training.

The server has a generator G(y, e) of features below the head, for a class y and uniform noise e. It
trains G against the heads of a round's clients, weighted by their numbers of samples of the class,

    Σ_i c_i(y) / Σ_j c_j(y) · CE(head_i(G(y, e)), y) + eta exp(-mean_ab |e_a - e_b|² |G_a - G_b|_1),

where both distances are means over entries and pairs of a batch. Clients receive the averaged model
and G, and add ``alpha 0.98^t CE(head(G(y, e)), y)`` to their loss, with y drawn from the classes
of all clients.

Differences from the paper
--------------------------
- The cross-entropies of the clients' heads are summed, as in the authors' code. Eq. 4 has that of
  the mean of their logits. The term of diversity is the authors' code's too.
- G has one hidden layer without batch normalization. The authors' code has it there.
- The authors' code has a further term: the divergence of a client's predictions on its samples
  from those on generated features of their classes. It is not in the paper's objective.
- y follows the classes of the last round's clients. The authors' code draws classes uniformly from
  those that are held.
- Counts are those of all of a client's training samples. The authors' code counts drawn samples.
  The server scales them to the size that the client has on record.
- There are no generated features in the first round, before the generator is trained.
- Adam starts anew in each round, with a constant step size and without weight decay.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.declarations import Sent
from strategies.core.method_record import Paper
from strategies.core.plan import Settings
from strategies.core.randomness import drawn_layers, random_generator
from strategies.core.replies import Arrays, ExpectedArray, InvalidReplyError, Reply
from strategies.core.settings_groups import ANY_ON_NODES, OnNodes, SearchRange
from strategies.method import ServerModels
from strategies.parameters import ParameterState, ParameterStrategy

COUNTS, SHARES, GENERATOR = "class-counts", "class-shares", "generator/"
"""Names of a client's counts and of the shares of classes, (K,), and prefix of the generator's."""


class FedGenSettings(Settings):
    """Settings of FedGen."""

    table = "fedgen"
    weight: Annotated[float, SearchRange(0.1, 10.0, log=True), OnNodes(0, 10)] = Field(
        default=10.0, ge=0
    )
    """alpha, the weight of generated features in the clients' loss; 0 is FedAvg."""
    weight_decay_rate: Annotated[float, ANY_ON_NODES] = Field(default=0.98, gt=0, le=1)
    """Factor of the weight from round to round."""
    generated_batch_size: Annotated[int, OnNodes(1, 4096)] = Field(default=32, ge=1)
    """Generated features of a step, on the server and on clients."""
    diversity: Annotated[float, ANY_ON_NODES] = Field(default=1.0, ge=0)
    """eta, the weight of the diversity of generated features."""
    noise_size: Annotated[int, OnNodes(1, 4096)] = Field(default=32, ge=1)
    """Entries of the noise e."""
    hidden_size: Annotated[int, OnNodes(1, 4096)] = Field(default=256, ge=1)
    """Units of the generator's hidden layer."""
    server_steps: Annotated[int, ANY_ON_NODES] = Field(default=50, ge=1)
    """Steps of the server on the generator in a round."""
    server_learning_rate: Annotated[float, SearchRange(0.0001, 0.01, log=True), ANY_ON_NODES] = (
        Field(default=0.0003, gt=0)
    )
    """Step size of the server."""


@dataclass(frozen=True)
class FedGenState(ParameterState):
    """The global model, the generator, and the classes it was trained on."""

    generator: dict[str, NDArray[np.float32]]
    """``hidden`` (h, e + K), ``hidden-bias`` (h,), ``output`` (d, h) and ``output-bias`` (d,)."""
    shares: NDArray[np.float32]
    """Shape (K,), the share of each class in the clients of the last round; 0 before the first."""


def shares_by_class(counts: NDArray[Any]) -> NDArray[np.float64]:
    """Return each client's share of each class, (R, K), from counts (R, K); 0 for no samples."""
    totals = counts.sum(axis=0)
    return np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)


class FedGen(ParameterStrategy):
    """FedAvg's server, which also trains the generator and sends it (Algorithm 1)."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="Z. Zhu, J. Hong, J. Zhou",
            title="Data-Free Knowledge Distillation for Heterogeneous Federated Learning",
            venue="ICML",
            year=2021,
            arxiv="2105.10056",
        ),
        exchanged="parameters and a generator",
        settings_type=FedGenSettings,
        trains_new_clients=False,
        sends=(*ParameterStrategy.record.sends, Sent(COUNTS)),
    )
    settings: FedGenSettings
    state: FedGenState
    server_models: ServerModels

    def begin(self, initial: Arrays) -> FedGenState:
        classes, draw = self.plan.num_classes, random_generator(self.plan.seed, "generator")
        width = self.server_models.feature_width
        inputs = self.settings.noise_size + classes
        generator = drawn_layers(draw, inputs, self.settings.hidden_size, width)
        return FedGenState(dict(initial), generator, np.zeros(classes, dtype=np.float32))

    def extra_parts(self, partition_id: int) -> Arrays:
        generator = {f"{GENERATOR}{name}": part for name, part in self.state.generator.items()}
        return {**generator, SHARES: self.state.shares}

    def extra_expected_arrays(self) -> dict[str, ExpectedArray]:
        return {COUNTS: ExpectedArray((self.plan.num_classes,))}

    def check_reply(self, reply: Reply) -> None:
        counts = reply.arrays[COUNTS]
        if (counts < 0).any() or not counts.sum() > 0:
            raise InvalidReplyError(f"{COUNTS} should be 0 or more, and one of them above 0")

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> FedGenState:
        """Average the models, and train the generator against the repliers' heads."""
        models = self.models_in(replies)
        # Each client weighs as its size on record, whatever counts it reports.
        sent = np.stack([reply.arrays[COUNTS] for reply in replies.values()]).astype(np.float64)
        counts = sent / sent.sum(axis=1, keepdims=True) * self.round.sizes(replies)[:, None]
        shares = counts.sum(axis=0) / counts.sum()
        generator = self.server_models.train_feature_generator(
            self.state.generator,
            list(models.values()),
            shares_by_class(counts),
            shares,
            server_round,
            diversity=self.settings.diversity,
            steps=self.settings.server_steps,
            batch_size=self.settings.generated_batch_size,
            learning_rate=self.settings.server_learning_rate,
        )
        model, known = self.average(models), shares.astype(np.float32)
        return replace(self.state, model=model, generator=generator, shares=known)
