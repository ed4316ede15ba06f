"""A control of safeguards: the method's model is a second private model.

results/sweeps/safeguard-second-private-model.toml has its runs.

Its clients train alone, from another draw of initial weights and on other batches than the private
model of their safeguard. What the blend of both gains over one is the gain of any two models. What
the blend with another method's model gains over that is the gain of the others' knowledge.
"""

from collections.abc import Iterator

from torch import Tensor

import fedkd_flwr
from fedkd_flwr.clients.base import PersonalClient
from strategies.local import Local


class SecondPrivateClient(PersonalClient):
    """A client of `local` with another draw of initial weights and of batches."""

    @property
    def initial_draw(self) -> int:
        """A draw that no client of `local` has."""
        return super().initial_draw + self.data_plan.num_clients

    def private_positions(self, server_round: int, num_samples: int) -> Iterator[Tensor]:
        """Yield the positions of the batches that `local` would have after the run's last round."""
        return super().private_positions(
            self.run.plan.num_server_rounds + server_round, num_samples
        )


second_private_model = fedkd_flwr.register(
    "second-private-model", strategy=Local, client=SecondPrivateClient
)
