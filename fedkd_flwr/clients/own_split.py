"""The split of a node's own data: the policy's, the run's, or one for use in place of a default."""

from fedkd_flwr.clients.policy import ANY, NodePolicy, PolicyError
from fedkd_flwr.data.settings import DataSettings
from fedkd_flwr.data.splits import read_split

FOR_SIMULATIONS = DataSettings().client_split
"""The default ``client-split``. It leaves few training samples, which suits experiments alone."""

SPLIT_FOR_USE = "70/10/20"
"""The ``client-split`` of a node with its own data and no split of its own, if the run config has
`FOR_SIMULATIONS`."""


def split_for_use(data: DataSettings, data_path: str, policy: NodePolicy) -> DataSettings:
    """Return data settings in which a node with its own data has a split for use.

    Raises
    ------
    PolicyError
        If the run config has another split than the policy.
    """
    if policy.trust_server or not data_path:
        return data
    own, asked = policy.client_split, data.client_split
    if asked == FOR_SIMULATIONS:
        split = SPLIT_FOR_USE if own == ANY else own
        return data.model_copy(update={"client_split": split})
    if own != ANY and read_split(asked) != read_split(own):
        raise PolicyError("the client-split of the run is not that of this node")
    return data
