"""PrivateKT: clients send few labels under local differential privacy, and learn from a server's.

The server has a model. In each round it draws a few knowledge samples from the public samples, the
likelier the larger the entropy of its prediction. Clients reply with their labels of these samples,
after randomized response. The most frequent label by unbiased estimates enters a buffer of the last
rounds. The server trains its model on the buffer, and then on its own predictions on public samples
of small entropy (self-training).

epsilon is that of all labels of a round together, in the sense of local differential privacy: it
holds towards the server, for all data of a client. Over rounds it adds up, with delta = 0.

Differences from the paper
--------------------------
- Each client keeps its own model, of any architecture, and learns from the server's predictions on
  the round's public samples by KL divergence (`strategies.soft_predictions`). In the paper clients
  receive the server's model, train it on their data in each round, and discard it after they have
  replied. The server's model is that of the paper, in the first architecture of the run.
- One pass over the public data in self-training is a number of steps here.
- The targets of self-training are the model's own predictions, as in the authors' code, so its
  gradient is zero for a network without dropout or batch normalization.
- Knowledge samples are drawn from the P public samples of a round, and self-training uses a share
  of them. The paper's are drawn from all public data.
- All classes with the largest estimate are equal; the first one is the label. This is what the
  authors' code does.
- The column ``epsilon`` adds up the rounds in which a client was asked. The paper has the epsilon
  of one round.
- The noise is secret by default and drawn by the operating system;
  ``soft-predictions.noise-seed`` makes it repeatable. Losses of clients are not sent.
- Options of soft predictions that randomized response does not fit are refused.
- A new client learns from the last predictions of the server, and sends no labels.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.declarations import Data, of_model
from strategies.core.method_record import Need, Paper
from strategies.core.plan import RunPlan, Settings, refuse_above
from strategies.core.privacy import UniformDraws
from strategies.core.probabilities import softmax
from strategies.core.randomness import random_generator
from strategies.core.replies import Arrays, ExpectedArray, InvalidReplyError, Reply
from strategies.core.settings_groups import ANY_ON_NODES, OnNodes, SearchRange
from strategies.method import ServerModels
from strategies.soft_predictions import (
    DistillationSettings,
    SoftPredictionState,
    SoftPredictionStrategy,
    refuse_options,
)


def keep_probability(epsilon: float, num_classes: int) -> float:
    """Return beta, ``(e^epsilon - 1) / (e^epsilon - 1 + K)``, with which a label is kept."""
    rest = math.exp(-epsilon)
    return (1 - rest) / (1 - rest + num_classes * rest)


def randomized(
    labels: NDArray[Any], num_classes: int, epsilon: float, draw: UniformDraws
) -> NDArray[np.uint16]:
    """Return labels (A,) below K after randomized response (Warner 1965, for K classes).

    Whatever the label is, no reply is more than ``e^epsilon`` times as likely as under another
    label, if nobody can repeat the draws.
    """
    kept, drawn = draw((2, len(labels)))
    others = (drawn * num_classes).astype(np.uint16)
    is_kept = kept < keep_probability(epsilon, num_classes)
    return np.where(is_kept, labels, others).astype(np.uint16)


def label_frequencies(
    replies: NDArray[Any], num_classes: int, epsilon: float
) -> NDArray[np.float64]:
    """Return unbiased estimates of the share of clients with each label, (A, K), from (R, A).

    An estimate may be negative; rows sum to 1.
    """
    beta = keep_probability(epsilon, num_classes)
    shares = (replies[:, :, None] == np.arange(num_classes)).mean(axis=0)
    frequencies: NDArray[np.float64] = (shares - (1 - beta) / num_classes) / beta
    return frequencies


LABELS = "labels"  # name of the array of labels in a reply, (A,) uint16


class PrivateKTSettings(DistillationSettings):
    """Settings of PrivateKT."""

    table = "privatekt"
    epsilon: Annotated[float, ANY_ON_NODES] = Field(default=5.0, gt=0, le=1000)
    """Local differential privacy of all labels that a client sends in a round."""
    knowledge_samples: Annotated[int, ANY_ON_NODES] = Field(default=2, ge=1)
    """Number of public samples that clients label in a round, each with epsilon over this
    number."""
    buffer_rounds: Annotated[int, ANY_ON_NODES] = Field(default=25, ge=1)
    """Number of rounds whose labels the server trains on."""
    server_steps: Annotated[int, ANY_ON_NODES] = Field(default=20, ge=0)
    """Steps of gradient descent on the buffer, per round."""
    server_batch_size: Annotated[int, ANY_ON_NODES] = Field(default=32, ge=1)
    """Samples per step on the server."""
    server_learning_rate: Annotated[float, SearchRange(0.005, 0.5, log=True), ANY_ON_NODES] = Field(
        default=0.05, gt=0
    )
    """Step size on the server."""
    self_training_share: Annotated[float, ANY_ON_NODES] = Field(default=0.1, gt=0, le=1)
    """Share of the public samples of a round for self-training."""
    self_training_steps: Annotated[int, OnNodes(0, 1000)] = Field(default=1, ge=0)
    """Steps of self-training, per round; 0 for none."""

    @property
    def is_private(self) -> bool:
        """Whether what clients send has noise: always."""
        return True

    def privacy_spent(self, releases: int) -> tuple[float, float]:
        """Return epsilon, the sum over the rounds in which a client was asked, and delta, 0."""
        return releases * self.epsilon, 0.0

    @property
    def label_epsilon(self) -> float:
        """The epsilon of one label."""
        return self.epsilon / self.knowledge_samples


def drawn_by_entropy(
    logits: NDArray[Any], number: int, sign: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Draw samples without replacement, with probabilities proportional to ``exp(sign * H)``.

    H is the entropy of the softmax of logits (P, K); sign 1 prefers uncertain samples, -1 certain
    ones. Return ascending positions.
    """
    probabilities = softmax(logits.astype(float))
    entropy = -(probabilities * np.log(np.maximum(probabilities, 1e-12))).sum(axis=1)
    weights = np.exp(sign * entropy)
    drawn = generator.choice(len(logits), number, replace=False, p=weights / weights.sum())
    return np.sort(drawn)


@dataclass(frozen=True)
class PrivateKTState(SoftPredictionState):
    """The server's model, the buffer, and the next knowledge samples."""

    model: dict[str, NDArray[Any]]
    """The server's model."""
    knowledge: NDArray[np.bool_]
    """Shape (P,) bool, the knowledge samples among the public samples of the next round."""
    samples: NDArray[np.int64]
    labels: NDArray[np.int64]
    """Shape (B * A,) at most, the buffer: positions in the public set, and classes."""


class PrivateKT(SoftPredictionStrategy):
    """PrivateKT's server: a model that learns from labels, and teaches all clients."""

    record = SoftPredictionStrategy.record.derived(
        paper=Paper(
            authors="T. Qi, F. Wu, C. Wu, L. He, Y. Huang, X. Xie",
            title="Differentially Private Knowledge Transfer for Federated Learning",
            venue="Nature Communications 14, 3785",
            year=2023,
        ),
        needs=(Need.PUBLIC_DATA, Need.PUBLIC_DATA_ON_SERVER),
        settings_type=PrivateKTSettings,
        sends=(of_model(LABELS, Data.PUBLIC),),
        train_metrics=(),
    )
    settings: PrivateKTSettings
    server_models: ServerModels
    state: PrivateKTState

    @classmethod
    def check_plan(cls, plan: RunPlan, settings: Settings) -> None:
        own = PrivateKTSettings.model_validate(settings)
        reason = "since clients send labels after randomized response"
        refuse_options(own, reason, mixing="mean", clip_norm=0, noise_multiplier=0)
        samples, size = own.knowledge_samples, plan.public_size
        refuse_above("privatekt.knowledge-samples", samples, size, f"public-size = {size}")

    @property
    def architecture(self) -> str:
        return self.server_models.names[0]

    def begin(self, initial: Arrays) -> PrivateKTState:
        plain, none = super().begin(initial), np.empty(0, dtype=np.int64)
        model = dict(self.server_models.initial(name=self.architecture))
        samples = self.drawn(1, model)
        return PrivateKTState(plain.releases, plain.teachers, model, samples, none, none)

    def drawn(self, server_round: int, model: Arrays) -> NDArray[np.bool_]:
        """Draw the knowledge samples of a round, a mask (P,)."""
        logits = self.server_models.predict(self.architecture, model, server_round)
        generator = random_generator(self.plan.seed, "knowledge-samples", server_round)
        mask = np.zeros(len(logits), dtype=np.bool_)
        mask[drawn_by_entropy(logits, self.settings.knowledge_samples, 1, generator)] = True
        return mask

    def takes_late_reply(self, partition_id: int) -> bool:
        """Refuse it: each round asks for other samples."""
        return False

    def asked(self, server_round: int, partition_id: int) -> NDArray[np.bool_]:
        """Return which public samples a client labels, shape (P,): none for a new client."""
        return super().asked(server_round, partition_id) & self.state.knowledge

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, ExpectedArray]:
        number = int(self.asked(server_round, partition_id).sum())
        return {LABELS: ExpectedArray((number,), "uint16")} if number else {}

    def check_reply(self, reply: Reply) -> None:
        if LABELS in reply.arrays and (reply.arrays[LABELS] >= self.plan.num_classes).any():
            raise InvalidReplyError(f"{LABELS} hold a number beyond {self.plan.num_classes - 1}")

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> PrivateKTState:
        """Train the server's model on the labels, and let it predict on the public samples."""
        settings, state = self.settings, self.state
        sent = np.stack([reply.arrays[LABELS] for reply in replies.values()])
        frequencies = label_frequencies(sent, self.plan.num_classes, settings.label_epsilon)
        size = settings.buffer_rounds * settings.knowledge_samples
        asked = self.server_models.public_subset(server_round)[state.knowledge]
        samples = np.append(state.samples, asked)[-size:]
        labels = np.append(state.labels, frequencies.argmax(axis=1))[-size:]
        model = self.trained_model(server_round, samples, labels)
        logits = self.server_models.predict(self.architecture, model, server_round)
        return replace(
            state,
            teachers=softmax((logits / settings.temperature).astype(float)).astype(np.float32),
            model=model,
            knowledge=self.drawn(server_round + 1, model),
            samples=samples,
            labels=labels,
        )

    def trained_model(
        self, server_round: int, samples: NDArray[np.int64], labels: NDArray[np.int64]
    ) -> dict[str, NDArray[Any]]:
        """Return the server's model after training on the buffer, and after self-training."""
        settings = self.settings
        fit = partial(
            self.server_models.fit,
            self.architecture,
            server_round=server_round,
            batch_size=settings.server_batch_size,
            learning_rate=settings.server_learning_rate,
            optimizer="sgd",
        )
        certain = np.eye(self.plan.num_classes)[labels]
        model = fit(self.state.model, samples, certain, steps=settings.server_steps)
        logits = self.server_models.predict(self.architecture, model, server_round)
        generator = random_generator(self.plan.seed, "self-training", server_round)
        number = max(1, round(settings.self_training_share * len(logits)))
        easy = drawn_by_entropy(logits, number, -1, generator)
        chosen = self.server_models.public_subset(server_round)[easy]
        likely = softmax(logits[easy].astype(float))
        return fit(model, chosen, likely, steps=settings.self_training_steps)
