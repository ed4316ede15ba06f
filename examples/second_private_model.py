"""A control of safeguards: the method's model is a second private model.

results/sweeps/safeguard-second-private-model.toml has its runs.

Its clients train alone, from another draw of initial weights and on other batches than the private
model of their safeguard. What the blend of both gains over one is the gain of any two models. What
the blend with another method's model gains over that is the gain of the others' knowledge.
"""

from collections.abc import Iterator
from functools import cached_property

from torch import nn

import fedkd_flwr
from fedkd_flwr.clients.base import PersonalClient
from fedkd_flwr.models.model_pool import fill_model
from fedkd_flwr.training.loop import Batch
from strategies.local import Local


class SecondPrivateClient(PersonalClient):
    """A client of `local` with another draw of initial weights and of batches."""

    @cached_property
    def model(self) -> nn.Module:
        """The stored model, or one from a draw that no client of `local` has."""
        model: nn.Module = super().model
        if not self.session.stored_model:
            draw = self.session.initial_draw + self.session.data_plan.num_clients
            fill_model(model, self.session.new_model(draw).state_dict())
        return model

    def private_batches(self, server_round: int) -> Iterator[Batch]:
        """Yield the batches that `local` would have after the run's last round."""
        return super().private_batches(self.session.run.plan.num_server_rounds + server_round)


second_private_model = fedkd_flwr.register(
    "second-private-model", strategy=Local, client=SecondPrivateClient
)
