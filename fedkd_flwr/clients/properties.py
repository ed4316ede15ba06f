"""What a client says of itself when it joins a run."""

from typing import Any

from fedkd_flwr.clients.node import Node
from fedkd_flwr.config import RunConfig
from fedkd_flwr.data.client_data import ClientData
from fedkd_flwr.data.clients import hash_of_public_pool
from fedkd_flwr.data.folders import class_names, hash_of_names


def data_properties(data: ClientData, run: RunConfig, node: Node) -> dict[str, Any]:
    """Return the sizes of a client's data, and hashes that have to be the same everywhere.

    The hashes are those of the public set and of the names of the classes. Sizes that only matter
    for results are 0 if the node withholds its counts.
    """
    has_results, (train, validation, test) = node.policy.allow_counts, data.sizes
    names = class_names(node.data_path, data.classes, run.data.label_column)
    return {
        "num-examples": train,
        "test-size": test if has_results else 0,
        "validation-size": validation if has_results else 0,
        "public-hash": hash_of_public_pool(run.data_plan.at_node(node.data_path)),
        "classes-hash": hash_of_names(names),
        "num-clients": 0 if node.data_path else run.plan.num_clients,
    }
