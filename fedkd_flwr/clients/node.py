"""A node's config, with the run's values as defaults, and the split of its own data."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedkd_flwr.clients.policy import (
    ANY,
    DEFAULT_SPLIT,
    NOISED,
    POLICY_KEYS,
    TRUSTING_POLICY,
    NodeConfigError,
    NodePolicy,
    PolicyError,
    read_policy,
)
from fedkd_flwr.clients.privacy_ledger import LEDGER, PrivacyLedger
from fedkd_flwr.config import RunConfig
from fedkd_flwr.data.content_split import Grouping
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.data.settings import AUTO, BENCHMARK_SPLIT, DataSettings
from fedkd_flwr.data.splits import read_split
from fedkd_flwr.memory import RUNS_KEPT

NODE_KEYS = (
    "partition-id",
    "num-partitions",
    "name",
    "model",
    "data-path",
    "group-column",
    "group-pattern",
    "input-statistics",
    "state-dir",
    "keep-runs",
    "models-dir",
    *POLICY_KEYS,
)
"""The keys of a node config."""


LEFT_OPEN = (AUTO, BENCHMARK_SPLIT)
"""Values of ``client-split`` in a run config that names none. In a deployment they stand for the
split of each node."""


class SurplusNodeError(NodeConfigError):
    """A node whose partition-id is none of the run's. The server leaves it out."""


@dataclass(frozen=True)
class Node:
    """A node's identity, data and folders.

    Attributes
    ----------
    partition_id : int
        The client's number, 0..N-1.
    data_path : str
        Its own image folder or Parquet file. Empty for a part of the data set.
    grouping : Grouping
        Which of its own samples belong together, such as those of a patient.
    input_statistics : str
        File with mean and deviation of the columns of its own table, see
        `fedkd_flwr.data.scaling.statistics_in`. Empty for none.
    model : str
        Its own choice of architecture. Empty for the run's assignment.
    state_folder : Path or None
        Folder for its memory in addition to the context, if any.
    models_folder : Path or None
        Folder for its personalized model after the last round, if any.
    runs_kept : int
        Number of runs whose memory is kept on disk, 0 for all.
    policy : NodePolicy
        What the node accepts and sends.
    """

    partition_id: int
    data_path: str
    grouping: Grouping
    model: str
    state_folder: Path | None
    models_folder: Path | None
    runs_kept: int
    policy: NodePolicy = TRUSTING_POLICY
    input_statistics: str = ""

    @property
    def ledger(self) -> PrivacyLedger | None:
        """The ledger of the node's releases, if it has a folder for it.

        A client that trusts the server has none, unless it has a budget.
        """
        policy, folder = self.policy, self.state_folder
        if folder is None or (policy.trust_server and not policy.has_budget):
            return None
        return PrivacyLedger(
            folder / LEDGER, policy.epsilon_budget, policy.privacy_delta, policy.count_budget
        )


def with_known_clients(
    run_config: Mapping[str, Any], node_config: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a flat run config in which the number of clients is known.

    Raises
    ------
    NodeConfigError
        If the run is for all connected clients, and the node's config has no number.
    """
    if run_config.get("num-clients") != 0:
        return run_config
    clients = node_config.get("num-partitions", 0)
    if not isinstance(clients, int) or clients < 1:
        raise NodeConfigError(
            "num-clients = 0 needs num-partitions, the number of all nodes, in the node's config; "
            "or set num-clients to that number"
        )
    return {**run_config, "num-clients": clients}


def read_node(node_config: Mapping[str, Any], run: RunConfig) -> Node:
    """Read a node's config.

    The folders of a node come from its config alone, unless it trusts the server.

    Raises
    ------
    NodeConfigError
        If a key is unknown, a number is missing or invalid, or a finite ``epsilon-budget`` has no
        folder for its ledger in a run that exchanges anything.
    SurplusNodeError
        If the run has no such partition. The server then leaves the node out.
    """
    check_keys(node_config)
    partition_id = _whole_number(node_config, "partition-id")
    if not 0 <= partition_id < run.plan.num_clients:
        raise SurplusNodeError(
            f"this node is surplus: its partition-id {partition_id} is none of the run's "
            f"0..{run.plan.num_clients - 1}"
        )
    policy = read_policy(node_config)
    defaults = {"state-dir": run.state_dir, "models-dir": run.models_dir}
    folders = {**(defaults if policy.trust_server else {}), **node_config}
    state_folder = _folder(str(folders.get("state-dir", "")))
    if policy.has_budget and not state_folder and run.method.record.family != "nothing":
        raise NodeConfigError("epsilon-budget needs state-dir, where the node keeps its ledger")
    if policy.allow_counts == NOISED and (policy.trust_server or not state_folder):
        raise NodeConfigError(
            "allow-counts=noised needs state-dir, where the node keeps its ledger, and no "
            "trust-server"
        )
    return Node(
        partition_id=partition_id,
        data_path=str(node_config.get("data-path", "")),
        grouping=_grouping(node_config),
        model=str(node_config.get("model", "")),
        state_folder=state_folder / str(partition_id) if state_folder else None,
        models_folder=_folder(str(folders.get("models-dir", ""))),
        runs_kept=_whole_number({"keep-runs": RUNS_KEPT, **node_config}, "keep-runs"),
        policy=policy,
        input_statistics=str(node_config.get("input-statistics", "")),
    )


def check_keys(node_config: Mapping[str, Any]) -> None:
    """Refuse unknown keys: a misspelled limit would otherwise not be in force.

    Raises
    ------
    NodeConfigError
        If there is one.
    """
    if unknown := sorted(set(node_config) - set(NODE_KEYS)):
        raise NodeConfigError(
            f"unknown {', '.join(unknown)} in the node's config; allowed are {', '.join(NODE_KEYS)}"
        )


def _grouping(node_config: Mapping[str, Any]) -> Grouping:
    """Return which samples of a node belong together. Raises `NodeConfigError`."""
    column, pattern = (str(node_config.get(f"group-{key}", "")) for key in ("column", "pattern"))
    try:
        return Grouping(column, pattern)
    except DataError as error:
        raise NodeConfigError(str(error)) from None


def _whole_number(node_config: Mapping[str, Any], key: str) -> int:
    """Return a number from a node's config. Raises `NodeConfigError`."""
    text = str(node_config.get(key, "missing"))
    if not text.isdecimal():
        raise NodeConfigError(
            f"this node's {key} is {text} in its config; it should be a whole number"
        )
    return int(text)


@lru_cache(maxsize=16)  # All clients of a simulation have the folders of their run.
def _folder(name: str) -> Path | None:
    return Path(name).expanduser() if name else None


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
