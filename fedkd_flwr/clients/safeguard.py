"""The safeguard of a client: a private model beside the method's, and the weight of each.

The client of `local` trains it, with a memory inside the client's, so that it equals the model of a
run of `local`.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from logging import WARNING
from typing import Any

from torch import Tensor, nn

from fedkd_flwr.clients.evaluating import Evaluated, counts_of, exported_model
from fedkd_flwr.clients.messages import TRAIN
from fedkd_flwr.config import RunConfig
from fedkd_flwr.training.blending import ONLY_PRIVATE, RULES, BlendedModel
from fedkd_flwr.training.loop import DivergedError
from strategies.core.flower import log
from strategies.core.metrics import Split
from strategies.core.safeguard import (
    METHOD_LOST,
    SAFEGUARD_WEIGHT,
    SAFEGUARDED_LOST,
    SafeguardSettings,
)

GROUPS = "safeguard-"  # beginning of the names of the private model's groups in the client's memory
LOCAL = "local"  # the method that trains the private model

Seeded = Callable[[str, int], AbstractContextManager[None]]
"""Seeds PyTorch's draws by purpose and round."""


class Safeguard:
    """The private model of a client, beside the model of its method; `blend` is the last choice.

    `begin` returns a `Session` for the private model, which goes on from what the last one kept.
    """

    def __init__(self, begin: Callable[[], Any], mode: str) -> None:
        self._begin, self._mode = begin, mode
        self._alone = begin()
        self._evaluated: Evaluated
        self.blend = ONLY_PRIVATE

    def train(self, server_round: int) -> None:
        """Train the private model as `local` does, and keep it, unless it diverges."""
        alone = self._alone
        try:
            alone.client.train({}, server_round, TRAIN)
        except DivergedError as error:
            log(WARNING, "Client %d: its private model: %s", alone.partition_id, error)
            self._alone = self._begin()
        else:
            alone.save()
            alone.keep()

    def count(
        self, method: Mapping[Split, Tensor], server_round: int, seeded: Seeded
    ) -> dict[str, float]:
        """Evaluate the private model, choose the weight, and count what would be deployed."""
        alone, data = self._alone.evaluating, self._alone.client.data
        with seeded("evaluate", server_round):
            self._evaluated = alone.prepared({}, server_round)
        private = alone.logits(self._evaluated.model)
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
        """Return what the last evaluation would deploy, with the method's model as exported."""
        return BlendedModel(method, exported_model(self._evaluated), self.blend)


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
