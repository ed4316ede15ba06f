"""The safeguard of a client: a private model beside the method's, and the weight of each.

The private model is trained by the client of the method `local`, with a memory of its own inside
the client's. It therefore equals the model of a run of `local` with the same seed and settings.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from logging import WARNING
from typing import Any

from flwr.app import Context
from torch import Tensor, nn

from fedkd_flwr.clients.reply import counts_of
from fedkd_flwr.clients.request import TRAIN
from fedkd_flwr.config import RunConfig
from fedkd_flwr.data.client_data import ClientData
from fedkd_flwr.memory import MODEL, Memory
from fedkd_flwr.training.blending import ONLY_PRIVATE, RULES, BlendedModel
from fedkd_flwr.training.jobs import StepCounter
from fedkd_flwr.training.loop import DivergedError
from strategies.core.counts import Split
from strategies.core.flower import log
from strategies.core.plan import Settings
from strategies.core.safeguard import (
    METHOD_LOST,
    SAFEGUARD_WEIGHT,
    SAFEGUARDED_LOST,
    SafeguardSettings,
)

GROUPS = "safeguard-"
"""Beginning of the names of the private model's groups in the client's memory."""

LOCAL = "local"
"""The method that trains the private model."""

Seeded = Callable[[str, int], AbstractContextManager[None]]
"""Seeds PyTorch's draws by purpose and round."""


class Safeguard:
    """The private model of a client, beside the model of its method.

    Parameters
    ----------
    client : type of PersonalClient
        The class of the client of `local`, for networks or for estimators.
    context : Context
        Flower's context of the client.
    run : RunConfig
        The run config of the method.
    memory : Memory
        The client's memory, which has been recalled.
    data : ClientData
        Its data.
    gradient_steps : StepCounter
        Counts the steps of fine-tuning before an evaluation.

    Attributes
    ----------
    alone : PersonalClient
        The client of `local` that trains and evaluates the private model.
    blend : Blend
        What the last evaluation chose.
    """

    def __init__(
        self,
        client: type[Any],
        context: Context,
        run: RunConfig,
        memory: Memory,
        data: ClientData,
        gradient_steps: StepCounter,
    ) -> None:
        self._memory = memory
        self._mode = run.plan.safeguard.mode
        self.blend = ONLY_PRIVATE
        own_run = run_of_private_model(run)
        self.alone: Any = client(context, own_run, Settings())
        self.alone.memory = memory.part(GROUPS)
        self.alone.gradient_steps = gradient_steps
        # The same tensors: with its own plan, the client would read the data again.
        vars(self.alone)["data"] = data

    def train(self, server_round: int) -> None:
        """Train the private model as `local` does, and keep it.

        A private model that diverges stays as it was.
        """
        alone = self.alone
        try:
            alone.train({}, server_round, TRAIN)
        except DivergedError as error:
            log(WARNING, "Client %d: its private model: %s", alone.partition_id, error)
            alone.close()
        else:
            alone.memory.save_model(MODEL, alone.model)
            self._memory.keep_part(GROUPS, alone.memory)

    def count(
        self, method: Mapping[Split, Tensor], server_round: int, seeded: Seeded
    ) -> dict[str, float]:
        """Evaluate the private model, choose the weight, and count what would be deployed.

        `method` has logits of the method's model by split, (n, K); `seeded` seeds what the private
        model draws.
        """
        alone, data = self.alone, self.alone.data
        with seeded("evaluate", server_round):
            alone.prepared_for_evaluation({}, server_round)
        splits = data.evaluated_splits.items()
        private = {split: alone.predict(alone.model, images) for split, (images, _) in splits}
        weigh = RULES[self._mode]
        self.blend = weigh(method["validation"], private["validation"], data.validation_labels)
        deployed = {split: self.blend(method[split], private[split]) for split in private}
        right, method_right, alone_right = (
            logits["test"].argmax(dim=1) == data.test_labels
            for logits in (deployed, method, private)
        )
        return {
            **counts_of("private", private, data),
            **counts_of("deployed", deployed, data),
            SAFEGUARDED_LOST: int((alone_right & ~right).sum()),
            METHOD_LOST: int((alone_right & ~method_right).sum()),
            SAFEGUARD_WEIGHT: self.blend.weight,
        }

    def deployed(self, method: nn.Module) -> nn.Module:
        """Return what the client would deploy, with the method's model as it is exported."""
        return BlendedModel(method, self.alone.exported_model, self.blend)

    def close(self) -> None:
        """Return the private model's object to the pool."""
        self.alone.close()


def run_of_private_model(run: RunConfig) -> RunConfig:
    """Return the run config of `local` with which a private model is trained."""
    settings = run.plan.safeguard
    changes: dict[str, float] = {}
    if settings.learning_rate:
        changes["learning_rate"] = settings.learning_rate
    if settings.momentum >= 0:
        changes["momentum"] = settings.momentum
    plan = run.plan.model_copy(update={"safeguard": SafeguardSettings()})
    training = run.training.model_copy(update=changes)
    return run.model_copy(update={"strategy": LOCAL, "plan": plan, "training": training})
