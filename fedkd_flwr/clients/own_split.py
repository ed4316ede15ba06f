"""The split of a node's own data, which its operator chooses."""

from fedkd_flwr.clients.policy import ANY, DEFAULT_SPLIT, NodePolicy, PolicyError
from fedkd_flwr.data.settings import AUTO, BENCHMARK_SPLIT, DataSettings
from fedkd_flwr.data.splits import read_split

LEFT_OPEN = (AUTO, BENCHMARK_SPLIT)
"""Values of ``client-split`` in a run config that names none. In a deployment they stand for the
split of each node."""


def node_split(data: DataSettings, data_path: str, policy: NodePolicy) -> DataSettings:
    """Return data settings in which a node with its own data has its own split.

    Raises
    ------
    PolicyError
        If the run config has another split than the policy.
    """
    if policy.trust_server or not data_path:
        return data
    own, asked = policy.client_split, data.client_split
    if asked in LEFT_OPEN:
        split = DEFAULT_SPLIT if own == ANY else own
        return data.model_copy(update={"client_split": split})
    if own != ANY and read_split(asked) != read_split(own):
        raise PolicyError(
            "the client-split of the run is not that of this node; leave it out of the run config"
        )
    return data
