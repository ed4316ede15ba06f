"""What a client is evaluated with: fine-tuning, statistics, counts, and the exported model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, from_numpy, nn

from fedkd_flwr.clients.local_training import LocalTraining
from fedkd_flwr.clients.messages import Arrays, TrainReply
from fedkd_flwr.data.clients import ClientData
from fedkd_flwr.memory import State as MethodState
from fedkd_flwr.models.model_pool import Architecture, plain_copy
from fedkd_flwr.training.jobs import StepCounter, undone_if_it_diverges
from fedkd_flwr.training.loop import (
    Loss,
    count_correct,
    epoch_batches,
    evaluate,
    keep_best_epoch,
    refresh_statistics,
    train_on,
)
from fedkd_flwr.training.losses import cross_entropy
from fedkd_flwr.training.optional_metrics import measured
from strategies.core.masks import packed_answers
from strategies.core.metrics import EvaluatedModel, Split, as_metrics

Logits = Mapping[Split, Tensor]  # what a model predicts on each split, (n, K)

Against = Callable[[Logits], dict[str, float]]
"""Compares the logits of a model with those of another one."""


@dataclass(frozen=True)
class Evaluated:
    """What a client is evaluated with, as its method prepares it."""

    model: nn.Module
    """The module that is fine-tuned if the run or the method asks for it, and then evaluated."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Further metrics of the method."""
    exported: Callable[[], nn.Module] | None = None
    """Returns the evaluated model in the architectures of the run, after any fine-tuning. By
    default it is `model`, with any projection in its head."""
    fine_tune_epochs: int = 0
    """Epochs of fine-tuning that the method adds to those of the run."""
    fine_tuned_by: Loss | None = cross_entropy
    """The loss of fine-tuning; None for a model that is never fine-tuned."""


class MethodClient(Protocol):
    """What a session asks of a method's client; `fedkd_flwr.clients.base` describes each name."""

    State: type[MethodState]
    keeps_model: bool
    data: ClientData
    trainable: Tensor
    architectures: tuple[Architecture, ...]

    model: nn.Module
    begin: Callable[[], Any]
    train: Callable[[Arrays, int, str], TrainReply]
    evaluated: Callable[[Arrays, int], Evaluated]
    predict: Callable[[nn.Module, Tensor], Tensor]


class Evaluating:
    """Evaluations of one client; steps of fine-tuning are counted."""

    def __init__(
        self, client: MethodClient, local: LocalTraining, gradient_steps: StepCounter
    ) -> None:
        self.client = client
        self._local, self._gradient_steps = local, gradient_steps
        self._run, self._node = local.run, local.node

    def prepared(self, received: Arrays, server_round: int) -> Evaluated:
        """Return what is evaluated, fine-tuned and with its statistics."""
        evaluated = self.client.evaluated(received, server_round)
        self._fine_tune(evaluated, server_round)
        if self._run.models.batch_norm_statistics == "fresh":
            # For every method: otherwise a comparison would measure running statistics.
            refresh_statistics(evaluated.model, self.client.data.train_images)
        return evaluated

    def _fine_tune(self, evaluated: Evaluated, server_round: int) -> None:
        """Train the model before its evaluation. The result is evaluated, not kept."""
        training, loss, model = self._run.training, evaluated.fine_tuned_by, evaluated.model
        epochs = training.fine_tune_epochs + evaluated.fine_tune_epochs
        if loss is None or not epochs:
            return
        client, trained = self.client, self.client.trainable
        generator = self._local.private_generator(
            "fine-tuning-batches", server_round, self._node.partition_id
        )
        optimizer = self._local.optimizer(model.parameters(), server_round)

        def train(epochs: int = 1) -> None:
            positions = epoch_batches(len(trained), training.batch_size, epochs, generator)
            batches = self._local.batches(client.data, (trained[chosen] for chosen in positions))
            train_on(model, loss, optimizer, self._gradient_steps.counted(batches))

        def rank() -> tuple[float, ...]:
            data = client.data
            with self._local.evaluation_statistics(model, data.train_images):
                return evaluate(model, data.validation_images, data.validation_labels).rank

        if training.fine_tune_early_stopping and len(client.data.validation_labels):
            keep_best_epoch(model, train, epochs, rank)
        elif self._node.policy.hides_divergence:
            with undone_if_it_diverges(model, [], self._local.report_divergence):
                train(epochs)
        else:
            train(epochs)

    def counted(self, name: EvaluatedModel) -> dict[str, float]:
        """Count the correct predictions of the client's model as it is, as metrics of this name."""
        client = self.client
        with self._local.evaluation_statistics(client.model, client.data.train_images):
            return counts_of(name, self.logits(client.model), client.data)

    def logits(self, model: nn.Module) -> Logits:
        """Return what a model predicts on each split, (n, K)."""
        splits = self.client.data.evaluated_splits.items()
        return {split: self.client.predict(model, images) for split, (images, _) in splits}

    def count(
        self, model: nn.Module, against: Against | None = None
    ) -> tuple[dict[str, float], bytes]:
        """Return counts and measures of a prepared model, and which test images it gets right."""
        data, answers = self.client.data, b""
        logits = self.logits(model)
        metrics, test = counts_of("own", logits, data), logits["test"]
        if self._run.plan.record_answers:
            answers = packed_answers((test.argmax(dim=1) == data.test_labels).cpu().numpy())
        if measures := self._run.plan.measures:
            shown = self._node.policy.reported
            held = from_numpy(shown(data.class_counts.cpu().numpy())).to(test.device)
            metrics |= measured(test, data.test_labels, held, measures, shown)
        if against is not None:
            metrics |= against(logits)
        return metrics, answers


def counts_of(
    model: EvaluatedModel, logits: Mapping[Split, Tensor], data: ClientData
) -> dict[str, float]:
    """Return correct predictions and losses by split, as metrics, of logits (n, K) by split."""
    metrics: dict[str, float] = {}
    for split, (_, labels) in data.evaluated_splits.items():
        found = count_correct(logits[split], labels)
        metrics |= as_metrics(model, split, found.correct, found.total, found.loss)
    return metrics


def exported_model(evaluated: Evaluated) -> nn.Module:
    """Return an evaluated model in the architectures of the run, to be exported."""
    if evaluated.exported is not None:
        return evaluated.exported()
    architecture = vars(evaluated.model).get("architecture")
    is_projected = isinstance(architecture, Architecture) and architecture.feature_width
    return plain_copy(evaluated.model) if is_projected else evaluated.model
