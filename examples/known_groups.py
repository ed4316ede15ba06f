"""A custom method: FedAvg within groups that are known before the run, such as regions.

uv run fedkd run -c strategy=examples.known_groups:fedavg_in_groups -c models=lenet

With the true groups of a split, it is the upper bound of methods that have to find them.
"""

from dataclasses import replace

import numpy as np

import fedkd_flwr
from fedkd_flwr.clients.parameters import FedAvgClient
from strategies.clusters import ClusteredStrategy, ClusterSettings


class InGroupsSettings(ClusterSettings):
    """``fedavg-in-groups.clusters`` is the number of groups."""

    table = "fedavg-in-groups"


class FedAvgInGroups(ClusteredStrategy):
    """One global model a group; clients that follow each other share one."""

    record = ClusteredStrategy.record.derived(
        settings_type=InGroupsSettings, trains_new_clients=False
    )

    def group_of(self, partition_id):
        """Return the group of a client, as ``partition = "k-classes-grouped"`` numbers them."""
        return partition_id * self.settings.clusters // self.plan.num_clients

    def model_for(self, partition_id):
        """Return the model of the client's group."""
        group = self.group_of(partition_id)
        return {kind: rows[group] for kind, rows in self.state.centers.items()}

    def aggregate_models(self, server_round, models):
        """Average the models of each group."""
        groups = np.array([self.group_of(n) for n in models])
        return replace(self.moved(self.state.centers, models, groups), model=self.average(models))


fedavg_in_groups = fedkd_flwr.register(
    "fedavg-in-groups", strategy=FedAvgInGroups, client=FedAvgClient
)
