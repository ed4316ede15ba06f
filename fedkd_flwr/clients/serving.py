"""One message, from its arrival at a client to the reply.

A message is read, the client recalls what it has kept, trains, counts its correct predictions,
exports its model if the run asks for that, and keeps what it needs for its next message.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import Context
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, from_numpy, nn

from fedkd_flwr.clients.properties import data_properties
from fedkd_flwr.clients.reply import Arrays, TrainReply, require_reply
from fedkd_flwr.clients.request import TRAIN, Request
from fedkd_flwr.clients.safeguard import Safeguard
from fedkd_flwr.clients.stateful import StatefulClient
from fedkd_flwr.config import RunConfig
from fedkd_flwr.data.client_data import ClientData
from fedkd_flwr.export import keep_only_best, model_card, round_folder, save_personalized_model
from fedkd_flwr.models.layers import Ensemble
from fedkd_flwr.training.jobs import StepCounter
from fedkd_flwr.training.loop import (
    DivergedError,
    count_correct,
    evaluate,
    refresh_statistics,
    seeded,
)
from fedkd_flwr.training.optional_metrics import measured
from strategies.core.answers import packed_answers
from strategies.core.evaluations import EvaluationPoint
from strategies.core.flower import log
from strategies.core.metrics import FINE_TUNING_STEPS, GRADIENT_STEPS
from strategies.core.plan import Settings
from strategies.core.versions import as_sent


class ServingClient(StatefulClient):
    """The part of a client that handles messages; `PersonalClient` adds the training.

    The parameters are those of `StatefulClient`.

    Attributes
    ----------
    gradient_steps : StepCounter
        Gradient steps taken for this message.
    """

    def __init__(self, context: Context, run: RunConfig, settings: Settings) -> None:
        super().__init__(context, run, settings)
        self.gradient_steps = StepCounter()
        self.device = run.torch_device

    # ---- What `PersonalClient` and the methods provide ---------------------------------

    @abstractmethod
    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train as a message asks, and return the reply."""

    @abstractmethod
    def predict(self, model: nn.Module, images: Tensor) -> Tensor:
        """Return a model's logits on images, (P, K) float32."""

    @abstractmethod
    def prepare_evaluation(self, received: Arrays, server_round: int) -> dict[str, float]:
        """Prepare the classifier for its evaluation, and return further metrics."""

    @abstractmethod
    def fine_tune_for_evaluation(self, server_round: int) -> None:
        """Train the model further before it is evaluated, if the run or the method asks for it."""

    @property
    @abstractmethod
    def data(self) -> ClientData:
        """The client's data."""

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The architecture of its model."""

    @property
    @abstractmethod
    def safeguard(self) -> Safeguard | None:
        """The private model beside the method's, if the run asks for one."""

    @property
    def classifier(self) -> nn.Module:
        """The module that is evaluated after `prepare_evaluation`: the client's model."""
        return self.model

    @property
    @abstractmethod
    def exported_model(self) -> nn.Module:
        """The evaluated model in the architecture `model_name`, or an `Ensemble` of it."""

    # ---- A message -------------------------------------------------------------------

    def serve(self, request: Request) -> TrainReply:
        """Serve a train message. What the model draws depends on round and client only."""
        with self.held_memory(request):
            with self._seeded(request.phase, request.server_round):
                reply = self._trained(request)
            with self._seeded(request.phase, request.server_round):
                self._train_alone(reply)
            self._note(request.server_round)
            if self._evaluates_trained_model:
                reply = reply.with_evaluation(self.evaluated_in(request.server_round))
            self._keep(request.server_round)
            return reply

    def serve_evaluation(self, request: Request) -> TrainReply:
        """Serve an evaluation message. Nothing is kept."""
        self.request = request
        self._recall(request.server_round + 1)
        return self._evaluated_alone(request.arrays, request.server_round)

    def evaluated_in(self, server_round: int) -> TrainReply:
        """Evaluate the model that the client remembers, as in a round."""
        return self._evaluated_alone({}, server_round)

    def _trained(self, request: Request) -> TrainReply:
        """Recall, train, and count the gradient steps."""
        self._recall_for(request)
        reply = self.train(request.arrays, request.server_round, request.phase)
        require_reply(reply, type(self))
        counts = self.counted_when("trained")
        self.local.limit_metrics(reply.metrics)
        reply.metrics.update(counts)
        reply.metrics[GRADIENT_STEPS.name] = self.gradient_steps.taken
        return reply

    def report_divergence(self, error: DivergedError) -> None:
        """Tell the operator of a training that was undone; the server is not told."""
        log(WARNING, "Client %d: %s. Its model is as before.", self.partition_id, error)

    def _train_alone(self, reply: TrainReply) -> None:
        """Train the private model, once a round, and add its gradient steps to the reply."""
        if self.safeguard and self.request.phase == TRAIN:
            self.safeguard.train(self.request.server_round)
            reply.metrics[GRADIENT_STEPS.name] = self.gradient_steps.taken

    @property
    def _evaluates_trained_model(self) -> bool:
        return self.request.evaluate and self.run.method.record.evaluates_trained_model

    # ---- Count and export ------------------------------------------------------------

    def _seeded(self, purpose: str, server_round: int) -> AbstractContextManager[None]:
        """Seed PyTorch's draws by the purpose, the round and the client."""
        return seeded(self.device, self.run.plan.seed, purpose, server_round, self.partition_id)

    def _evaluated_alone(self, received: Arrays, server_round: int) -> TrainReply:
        with self._seeded("evaluate", server_round):
            return self.evaluate_model(received, server_round)

    def evaluate_model(self, received: Arrays, server_round: int) -> TrainReply:
        """Count the classifier's correct predictions, and export the model if the run asks."""
        trained = self.gradient_steps.taken
        further = self.prepared_for_evaluation(received, server_round)
        counts, answers = self._count(server_round)
        metrics = {**counts, **further}
        steps = self.gradient_steps.taken - trained
        if steps and not self.policy.hides_divergence:
            metrics[FINE_TUNING_STEPS.name] = steps
        for folder in self._export_folders(server_round):
            try:
                self.export_model(folder, {**metrics, "round": server_round})
            except (OSError, RuntimeError, SafetensorError) as error:
                # A full disk, or a tensor that cannot be written, must not lose the results.
                log(WARNING, "Client %d: its model was not exported: %s", self.partition_id, error)
        if self.policy.allow_counts:
            return TrainReply({}, metrics, answers)
        told = ", ".join(f"{name} {value:g}" for name, value in metrics.items())
        log(INFO, "Client %d, for its operator alone: %s", self.partition_id, told)
        return TrainReply()

    def prepared_for_evaluation(self, received: Arrays, server_round: int) -> dict[str, float]:
        """Prepare and fine-tune the model for its evaluation, and return further metrics."""
        further = self.prepare_evaluation(received, server_round)
        self.fine_tune_for_evaluation(server_round)
        if self.run.models.batch_norm_statistics == "fresh":
            # For every method: otherwise a comparison would measure running statistics.
            refresh_statistics(self.classifier, self.data.train_images)
        return further

    def validation_rank(self) -> tuple[int, float]:
        """Return the rank of the classifier's result on validation data."""
        data = self.data
        with self.local.evaluation_statistics(self.classifier, data.train_images):
            return evaluate(self.classifier, data.validation_images, data.validation_labels).rank

    def counted_when(self, moment: EvaluationPoint) -> dict[str, float]:
        """Count the model's correct predictions if this is the method's `second_evaluation`.

        Returns
        -------
        dict of str to float
            Counts on the test split, and on the validation split if any; empty at other moments,
            in rounds without evaluation, and where the node withholds counts.
        """
        is_due = self.request.evaluate and self.run.method.record.second_evaluation == moment
        if not is_due or not self.policy.allow_counts:
            return {}
        data, counts = self.data, dict[str, float]()
        test = "", data.test_images, data.test_labels
        validation = "validation-", data.validation_images, data.validation_labels
        with self.local.evaluation_statistics(self.model, data.train_images):
            for split, images, labels in (test, validation):
                if len(labels):
                    logits = self.predict(self.model, images)
                    result = count_correct(logits, labels)
                    counts[f"{moment}-{split}correct"] = result.correct
                    counts[f"{moment}-{split}total"] = result.total
        return counts

    def _count(self, server_round: int) -> tuple[dict[str, float], bytes]:
        """Evaluate `classifier` on the client's test split, and on its validation split if any.

        Returns
        -------
        dict of str to float
            Counts, losses and measures.
        bytes
            Which test images are classified correctly, if the run records it.
        """
        data, answers = self.data, b""
        test_logits = logits = self.predict(self.classifier, data.test_images)
        metrics = count_correct(logits, data.test_labels).numbers()
        if self.run.plan.record_answers and self.policy.tells_answers:
            answers = packed_answers((logits.argmax(dim=1) == data.test_labels).cpu().numpy())
        if measures := self.run.plan.measures:
            shown = self.policy.reported
            held = from_numpy(shown(data.class_counts.cpu().numpy())).to(logits.device)
            metrics |= measured(logits, data.test_labels, held, measures, shown)
        if len(data.validation_labels):
            logits = self.predict(self.classifier, data.validation_images)
            metrics |= count_correct(logits, data.validation_labels).numbers("validation-")
        if self.safeguard:
            metrics |= self.safeguard.count(test_logits, logits, server_round, self._seeded)
        return metrics, answers

    def _export_folders(self, server_round: int) -> list[Path]:
        """Return the folders for the evaluated model, after removing older models there."""
        folder, request = self.node.models_folder, self.request
        if folder is None:
            return []
        # Where the node has its own operator, no run replaces the model of another. Whoever starts
        # a run chooses its own id, but not the one that Flower gives it.
        keeps_versions = not self.policy.trust_server
        folder = folder / f"{self.context.run_id}-{request.run_id}" if keeps_versions else folder
        of_round = round_folder(folder, server_round)
        last = [of_round if keeps_versions else folder] if request.is_last_round else []
        if not self.run.keep_best or request.trained_rounds:
            return last
        keep_only_best(folder, self.partition_id, request.best_round)
        return list(dict.fromkeys([*last, of_round]))

    def export_model(self, folder: Path, metrics: Mapping[str, float]) -> Path:
        """Write the personalized model and its model card, and return the safetensors file.

        Parameters
        ----------
        folder : Path
            For ``<partition-id>.safetensors`` and ``<partition-id>.json``. Created if missing.
        metrics : mapping of str to float
            Results of the model, for the model card.
        """
        whose = (self.model_name, self.partition_id, self.node.data_path)
        model = self.exported_model
        shared = self.settings.shared_model if isinstance(model, Ensemble) else ""
        card = model_card(self.run, self.request.run_id, *whose, metrics, shared)
        if self.safeguard:
            card["safeguard"] = asdict(self.safeguard.blend)
            model = self.safeguard.deployed(model)
        return save_personalized_model(model, card, folder)

    # ---- Flower's NumPyClient --------------------------------------------------------

    @property
    def identity(self) -> dict[str, Any]:
        """Part of every reply: the client, its architecture, and versions."""
        return {"partition-id": self.partition_id, "model": self.model_name, "versions": as_sent()}

    def get_properties(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the client's properties: its model, data and public set."""
        return {**self.identity, **data_properties(self.data, self.run, self.node)}

    def fit(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Serve a train message whose arrays are named in ``config["names"]``."""
        reply = self.serve(Request.of_list(parameters, config))
        metrics = {**reply.metrics, "names": list(reply.arrays)}
        return list(reply.arrays.values()), len(self.data.train_labels), metrics

    def evaluate(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Serve an evaluation message whose arrays are named in ``config["names"]``."""
        metrics = self.serve_evaluation(Request.of_list(parameters, config)).metrics
        return metrics.get("loss", math.nan), int(metrics.get("total", 0)), dict(metrics)
