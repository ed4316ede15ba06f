"""One message of one client, from its arrival to the reply."""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from functools import cached_property, partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from safetensors import SafetensorError
from torch import Tensor, nn, optim

from fedkd_flwr.clients.evaluating import Evaluated, Evaluating, MethodClient, exported_model
from fedkd_flwr.clients.gate import leaving, with_noise
from fedkd_flwr.clients.messages import TRAIN, Arrays, Request, TrainReply, require_reply
from fedkd_flwr.clients.participation import Participation
from fedkd_flwr.clients.policy import NOISED, PolicyError
from fedkd_flwr.clients.privacy_ledger import COUNT_NOISE
from fedkd_flwr.clients.remembered import Remembered
from fedkd_flwr.clients.safeguard import Safeguard
from fedkd_flwr.data.clients import ClientData, hash_of_public_pool, load_client, public_samples
from fedkd_flwr.data.custom_data import require_complete
from fedkd_flwr.data.folders import class_names, hash_of_names
from fedkd_flwr.data.settings import DataPlan
from fedkd_flwr.export import (
    distilled_folder,
    is_better,
    keep_only_best,
    model_card,
    round_folder,
    save_personalized_model,
)
from fedkd_flwr.memory import MODEL, PRIVATE, Memory, PartOfMemory, StoredState, own_context
from fedkd_flwr.models.layers import Ensemble
from fedkd_flwr.models.model_pool import Architecture, borrow, common_weights, fill_model, give_back
from fedkd_flwr.training.jobs import StepCounter
from fedkd_flwr.training.loop import Batch, epoch_batches, seeded
from strategies.core.evaluations import DISTILLATION, read_evaluation
from strategies.core.flower import log
from strategies.core.metrics import FINE_TUNING_STEPS, GRADIENT_STEPS, EvaluatedModel, metrics_of
from strategies.core.versions import as_sent

OF_DISTILLED = frozenset(metric.name for metric in metrics_of(["distilled"]))
"""Metrics that leave a client after the distillation beyond the last round."""


class Session:
    """One message of one client: what it asks for, with which data and memory it is served.

    A session `beside` another one of the same client shares data and counted steps with it, and its
    memory is a part of the other's.
    """

    def __init__(
        self, context: Context, part: Participation, beside: "Session | None" = None
    ) -> None:
        self.context, self.part, self.run, self.node = context, part, part.run, part.node
        self.settings: Any = part.settings
        self.policy, self.partition_id = self.node.policy, self.node.partition_id
        self.device, self.model_name = part.device, part.model_name
        self.request = Request()
        place = PartOfMemory(beside.memory, PRIVATE) if beside else own_context(context)
        self._remembered = Remembered(place, part)
        self.memory: Memory = self._remembered.memory
        self.local = self._remembered.local
        self.gradient_steps: StepCounter = beside.gradient_steps if beside else StepCounter()
        self._borrowed: list[nn.Module] = beside._borrowed if beside else []
        self._data = beside.data if beside else None
        self._stored_state: StoredState | None = None
        self.client: MethodClient = part.client(self)
        self.evaluating = Evaluating(self.client, self.local, self.gradient_steps)

    # ---- A message -------------------------------------------------------------------

    def serve(self, request: Request) -> TrainReply:
        """Serve a train message. What the model draws depends on round and client only."""
        if request.phase == DISTILLATION:
            return self._serve_distillation(request)
        self.request, server_round = request, request.server_round
        with self._remembered.held(request):
            with self._seeded(request.phase, server_round):
                reply, counts = self._trained(request)
            if self.safeguard and request.phase == TRAIN:
                with self._seeded(request.phase, server_round):
                    self.safeguard.train(server_round)
            counts |= {GRADIENT_STEPS.name: self.gradient_steps.taken, **self.local.spent_privacy()}
            self.save()
            self._remembered.note_round(request)
            evaluation = TrainReply()
            if request.evaluate and self.part.record.evaluates_trained_model:
                evaluation = self.evaluate_model({}, server_round)
            self.keep()
        metrics = {**reply.metrics, **counts, **evaluation.metrics}
        return self._leaving(TrainReply(reply.arrays, metrics, evaluation.answers))

    def _serve_distillation(self, request: Request) -> TrainReply:
        """Count what the next round would begin with. Nothing is kept."""
        self.request, self._stored_state = request, None
        next_round = request.server_round + 1
        self._remembered.recall(request, next_round)
        with self._seeded(TRAIN, next_round):
            reply = self.client.train(request.arrays, next_round, request.phase)
        self._export_distilled(request.server_round)
        counts = {name: v for name, v in reply.metrics.items() if name in OF_DISTILLED}
        return self._leaving(TrainReply(metrics=counts))

    def serve_evaluation(self, request: Request) -> TrainReply:
        """Serve an evaluation message. Nothing is kept."""
        self.request, self._stored_state = request, None
        self._remembered.recall(request, request.server_round + 1)
        return self._leaving(self.evaluate_model(request.arrays, request.server_round))

    def _leaving(self, reply: TrainReply) -> TrainReply:
        """Return what leaves the client; arrays and metrics leave it nowhere else."""
        left = leaving(reply, self.part, self.data.classes)
        if self.policy.allow_counts == NOISED:
            left = self._with_noised_counts(left)
        withheld = {k: v for k, v in reply.metrics.items() if left.metrics.get(k) != v}
        if withheld and not self.policy.trust_server:
            told = ", ".join(f"{name} {value:g}" for name, value in withheld.items())
            log(INFO, "Client %d, for its operator alone: %s", self.partition_id, told)
        return left

    def _with_noised_counts(self, reply: TrainReply) -> TrainReply:
        """Return a reply whose numbers of correct answers have noise, which the ledger counts."""
        deviation, request = self.policy.count_noise, self.request
        one_split = self.run.data.evaluated_split == "validation"
        metrics, counts = with_noise(reply.metrics, deviation, one_split=one_split)
        if counts and (ledger := self.node.ledger):
            entry = {COUNT_NOISE: deviation / math.sqrt(counts)}
            ledger.record(entry, request.run_id, request.server_round)
        return replace(reply, metrics=metrics)

    def _trained(self, request: Request) -> tuple[TrainReply, dict[str, float]]:
        """Recall and train; return the method's reply, and counts of the trained model."""
        self._stored_state = None
        self._remembered.recall_for_training(request)
        reply = self.client.train(request.arrays, request.server_round, request.phase)
        require_reply(reply, type(self.client))
        return reply, self.evaluate("trained")

    def save(self) -> None:
        """Save the trained model, before an evaluation changes it, and the state in the memory."""
        if self.client.keeps_model:
            self.memory.save(MODEL, self.client.model.state_dict())
        if self._stored_state:
            self._stored_state.save(self.memory)

    def keep(self) -> None:
        """Keep the memory for later messages. A message that fails before keeps nothing."""
        self._remembered.keep(self.request)

    def _seeded(self, purpose: str, server_round: int) -> AbstractContextManager[None]:
        """Seed PyTorch's draws by the purpose, the round and the client."""
        return seeded(self.device, self.run.plan.seed, purpose, server_round, self.partition_id)

    def close(self) -> None:
        """Return the model objects to the pool. Their weights were stored before."""
        while self._borrowed:
            give_back(self._borrowed.pop())

    # ---- Evaluation and export -------------------------------------------------------

    def evaluate(self, name: EvaluatedModel) -> dict[str, float]:
        """Count the correct predictions of the client's model as it is, under a name.

        Empty if the method does not evaluate this model, or the round is not evaluated.
        """
        is_counted = self.request.asks_for(name) and name in self.part.record.evaluates
        return self.evaluating.counted(name) if is_counted else {}

    def evaluated_model(self, server_round: int) -> nn.Module:
        """Return what a method that evaluates the trained model has evaluated in a round."""
        with self._seeded("evaluate", server_round):
            return self.evaluating.prepared({}, server_round).model

    def evaluate_model(self, received: Arrays, server_round: int) -> TrainReply:
        """Count the correct predictions of what the method evaluates, and export it if asked."""
        with self._seeded("evaluate", server_round):
            taken = self.gradient_steps.taken
            evaluated = self.evaluating.prepared(received, server_round)
            counts, answers = self._count(evaluated, server_round)
            metrics = {**counts, **evaluated.metrics}
            steps = self.gradient_steps.taken - taken
            if steps:
                metrics[FINE_TUNING_STEPS.name] = steps
            for folder in self._export_folders(server_round):
                results = {**read_evaluation(metrics).row, "round": server_round}
                self._write(evaluated, folder, results)
        return TrainReply({}, metrics, answers)

    def _count(self, evaluated: Evaluated, server_round: int) -> tuple[dict[str, float], bytes]:
        """Count for the evaluated model, and for what the safeguard would deploy."""
        if self.safeguard is None:
            return self.evaluating.count(evaluated.model)
        against = partial(self.safeguard.count, server_round=server_round, seeded=self._seeded)
        return self.evaluating.count(evaluated.model, against)

    def _export_distilled(self, server_round: int) -> None:
        """Export the model after its distillation: to be chosen by the run, or if a node does."""
        folder = self._folder_of_run
        # What the safeguard deploys is a mixture with the model after local training.
        if folder is None or self.safeguard:
            return
        model, is_of_run = self.client.model, "models-dir" not in self.context.node_config
        with self.local.evaluation_statistics(model, self.data.train_images):
            results = read_evaluation(self.evaluating.counted("own")).row
            results |= {"round": server_round}
            last = (
                distilled_folder(folder) if is_of_run else self._last_folder(folder, server_round)
            )
            if is_of_run or is_better(results, last, self.partition_id):
                self._write(Evaluated(model), last, results)

    def _export_folders(self, server_round: int) -> list[Path]:
        """Return the folders for the evaluated model, after removing older models there."""
        folder, request = self._folder_of_run, self.request
        if folder is None:
            return []
        last = [self._last_folder(folder, server_round)] if request.is_last_round else []
        if not self.run.keep_best or request.trained_rounds:
            return last
        keep_only_best(folder, self.partition_id, request.best_round)
        return list(dict.fromkeys([*last, round_folder(folder, server_round)]))

    @property
    def _folder_of_run(self) -> Path | None:
        """The folder for the run's models, if any; a node's own operator gets one for each run.

        Whoever starts a run chooses its own id, but not the one that Flower gives it.
        """
        folder = self.node.models_folder
        if folder is None or self.policy.trust_server:
            return folder
        return folder / f"{self.context.run_id}-{self.request.run_id}"

    def _last_folder(self, folder: Path, server_round: int) -> Path:
        return folder if self.policy.trust_server else round_folder(folder, server_round)

    def _write(self, evaluated: Evaluated, folder: Path, results: Mapping[str, Any]) -> None:
        try:
            self._write_model(evaluated, folder, results)
        except (OSError, RuntimeError, SafetensorError) as error:
            # A full disk, or a tensor that cannot be written, must not lose the results.
            log(WARNING, "Client %d: its model was not exported: %s", self.partition_id, error)

    def _write_model(self, evaluated: Evaluated, folder: Path, results: Mapping[str, Any]) -> None:
        whose = (self.model_name, self.partition_id, self.node.data_path)
        model = exported_model(evaluated)
        shared = self.settings.shared_model if isinstance(model, Ensemble) else ""
        card = model_card(self.run, self.request.run_id, *whose, self.data.scaling, results, shared)
        card["levels"] = asdict(self.data.samples.levels)
        if self.request.phase == DISTILLATION:
            card["evaluated"] = "distilled"
        if self.safeguard:
            card["safeguard"] = asdict(self.safeguard.blend)
            model = self.safeguard.deployed(model)
        save_personalized_model(model, card, folder)

    @cached_property
    def safeguard(self) -> Safeguard | None:
        """The private model beside the method's, if the run asks for one."""
        if (private := self.part.private) is None:
            return None
        mode = self.run.plan.safeguard.mode
        return Safeguard(lambda: Session(self.context, private, beside=self), mode)

    # ---- What the client is and has --------------------------------------------------

    @property
    def identity(self) -> dict[str, Any]:
        """Part of every reply: the client, its architecture, and versions."""
        return {"partition-id": self.partition_id, "model": self.model_name, "versions": as_sent()}

    @property
    def properties(self) -> dict[str, Any]:
        """The client's identity, sizes and hashes of its data; 0 for sizes that may not leave."""
        data, run, own_data = self.data, self.run, self.node.data_path
        train, validation, test = data.sizes
        sizes: dict[str, float] = {"num-examples": train}
        sizes |= {"test-size": test, "validation-size": validation}
        names = class_names(own_data, data.classes, run.data.label_column)
        return {
            **self.identity,
            **dict.fromkeys(sizes, 0),
            **self._leaving(TrainReply(metrics=sizes)).metrics,
            "public-hash": hash_of_public_pool(self.data_plan),
            "public-size": len(data.public_images),
            "classes-hash": hash_of_names(names),
            "num-clients": 0 if own_data else run.plan.num_clients,
        }

    @property
    def data_plan(self) -> DataPlan:
        """What the data of the run's clients depend on."""
        return self.part.data_plan

    @property
    def data(self) -> ClientData:
        """The client's data and the public pool, on the device, after checking both."""
        if self._data is None:
            node = self.node
            own = (node.data_path, node.grouping, node.input_statistics)
            data = load_client(self.data_plan, self.partition_id, *own)
            if node.data_path and not self.part.is_estimator:
                require_complete(data.samples.images, "this node", self.model_name)
            is_image = not data.samples.images.is_floating_point()
            is_compared = is_image and node.data_path and len(data.public_images)
            self.policy.check_data(data.sizes, data.in_public, data.shape if is_compared else ())
            if node.data_path and data.samples.are_leveled_together and self._hides_samples:
                raise PolicyError(
                    "this node has images of 16 bits or transparent ones, whose levels follow from "
                    "all of them; neither dp-sgd-noise-multiplier nor allow-counts=noised covers it"
                )
            self._data = data
        return self._data

    @property
    def _hides_samples(self) -> bool:
        """Whether noise hides single samples: in training, or in counts."""
        return bool(self.run.dp_sgd.noise_multiplier) or self.policy.allow_counts == NOISED

    @cached_property
    def architecture(self) -> Architecture:
        """The architecture of that name for the client's data, without weights."""
        data, models = self.data, self.run.models
        return Architecture(
            self.model_name,
            data.shape,
            data.classes,
            self.part.search_space,
            self.device,
            models.feature_width,
        )

    @property
    def state(self) -> Any:
        """The client's state. What is assigned to its fields is kept with a train message."""
        if self._stored_state is None:
            kind, begin = self.client.State, self.client.begin
            self._stored_state = StoredState(kind, self.memory, self.device, begin)
        return self._stored_state.value

    @property
    def stored_model(self) -> dict[str, Tensor] | None:
        """The weights of the client's model after its last training, if it keeps them."""
        return self.memory.load(MODEL)

    # ---- Models ----------------------------------------------------------------------

    def borrow(self, architecture: Architecture) -> nn.Module:
        """Return a model with arbitrary weights, to be filled; it is the client's until `close`."""
        model = borrow(architecture)
        self._borrowed.append(model)
        return model

    @property
    def initial_draw(self) -> int:
        """Number of the draw of the client's initial weights, 0 if all clients have the same."""
        return 0 if self.run.models.initial_weights == "common" else self.partition_id

    def new_model(self, draw: int | None = None) -> nn.Module:
        """Build the client's architecture with the initial weights of a draw."""
        draw = self.initial_draw if draw is None else draw
        with seeded("cpu", self.run.plan.seed, "initial-weights", draw):
            model = self.client.architectures[0].build()
        return model.to(self.device)

    def recalled_model(self) -> nn.Module:
        """Return the client's stored model, or a new one with its initial weights."""
        architecture = self.client.architectures[0]
        model, weights = self.borrow(architecture), self.stored_model
        if not weights and self.client.keeps_model:
            if self.initial_draw:
                weights = self.new_model().state_dict()
            else:
                weights = common_weights(architecture, self.run.plan.seed, self.new_model)
        fill_model(model, weights or {})
        return model

    # ---- Batches and optimizers ------------------------------------------------------

    def private_positions(self, server_round: int, num_samples: int) -> Iterator[Tensor]:
        """Yield the positions of a round's batches among some samples."""
        return iter(self.local.mixed_enough(self.local.positions(num_samples, server_round)))

    def private_generator(self, purpose: str, server_round: int) -> np.random.Generator:
        """Return a generator of draws among private samples: secret for a node's own data."""
        return self.local.private_generator(purpose, server_round, self.partition_id)

    def batches_at(self, positions: Iterator[Tensor]) -> Iterator[Batch]:
        """Yield private batches of images and labels by their positions."""
        return self.local.batches(self.data, positions)

    def batches_of_epochs(self, purpose: str, server_round: int, epochs: int) -> Iterator[Batch]:
        """Yield private batches of some epochs over all training samples, drawn for a purpose."""
        samples, size = self.data.num_train, self.run.training.batch_size
        generator = self.private_generator(purpose, server_round)
        return self.batches_at(epoch_batches(samples, size, epochs, generator))

    def public_images(self, server_round: int) -> Tensor:
        """Return the public subset of a round, shape (P, channels, height, width)."""
        drawn_in = self.request.drawn_in(server_round)
        return public_samples(self.data_plan, self.run.plan.public_size, drawn_in)

    @contextmanager
    def kept_momentum(
        self, optimizer: optim.Optimizer, model: nn.Module, replaced: Collection[nn.Parameter] = ()
    ) -> Iterator[None]:
        """Load the momentum of earlier trainings before a training, and store it afterwards."""
        own_model = self.client.model
        names = {own: f"model/{name}" for name, own in own_model.named_parameters()}
        if model is not own_model:
            kind = type(model).__name__
            names = {own: f"{kind}/{name}" for name, own in model.named_parameters()} | names
        self.memory.load_momentum(optimizer, names, replaced)
        yield
        self.memory.save_momentum(optimizer, names, replaced)
