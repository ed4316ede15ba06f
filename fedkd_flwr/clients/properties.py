"""What a client says of itself when it joins a run."""

from typing import TYPE_CHECKING, Any

from fedkd_flwr.data.clients import hash_of_public_pool
from fedkd_flwr.data.folders import class_names, hash_of_names

if TYPE_CHECKING:
    from fedkd_flwr.clients.base import PersonalClient


def properties_of(client: "PersonalClient") -> dict[str, Any]:
    """Return a client's properties: its identity, the sizes of its data, and hashes.

    The hashes are those of the public set and of the names of its classes, which have to be the
    same everywhere. Sizes that only matter for results are 0 if the client withholds its counts.
    """
    data, run, node = client.data, client.run, client.node
    has_results = client.policy.allow_counts
    return {
        **client.identity,
        "num-examples": client.num_examples,
        "test-size": len(data.test_labels) if has_results else 0,
        "validation-size": len(data.validation_labels) if has_results else 0,
        "public-hash": hash_of_public_pool(run.data_plan),
        "classes-hash": hash_of_names(class_names(node.data_path, data.classes)),
        "num-clients": 0 if node.data_path else run.plan.num_clients,
    }
