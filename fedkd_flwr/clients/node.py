"""A node's config, with the run's values as defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkd_flwr.clients.state_dir import RUNS_KEPT
from fedkd_flwr.config import RunConfig
from fedkd_flwr.data.own_split import Grouping


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
    model : str
        Its own choice of architecture. Empty for the run's assignment.
    state_folder : Path or None
        Folder for its memory in addition to the context, if any.
    models_folder : Path or None
        Folder for its personalized model after the last round, if any.
    runs_kept : int
        Number of runs whose memory is kept on disk, 0 for all.
    """

    partition_id: int
    data_path: str
    grouping: Grouping
    model: str
    state_folder: Path | None
    models_folder: Path | None
    runs_kept: int

    def memory_folder(self, run_id: str) -> Path | None:
        """Return the folder for the node's memory of a run, if any."""
        return self.state_folder / run_id if self.state_folder and run_id else None


def with_known_clients(
    run_config: Mapping[str, Any], node_config: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a flat run config in which the number of clients is known.

    Raises
    ------
    ValueError
        If the run is for all connected clients, and the node's config has no number.
    """
    if run_config.get("num-clients") != 0:
        return run_config
    clients = node_config.get("num-partitions", 0)
    if not isinstance(clients, int) or clients < 1:
        raise ValueError(
            "num-clients = 0 needs num-partitions, the number of all nodes, in the node's config; "
            "or set num-clients to that number"
        )
    return {**run_config, "num-clients": clients}


def read_node(node_config: Mapping[str, Any], run: RunConfig) -> Node:
    """Read a node's config.

    Raises
    ------
    ValueError
        If a number is missing or invalid, or the run has no such partition. The server then
        leaves the node out.
    """
    partition_id = _whole_number(node_config, "partition-id")
    if not 0 <= partition_id < run.plan.num_clients:
        raise ValueError(
            f"this node is surplus: its partition-id {partition_id} is none of the run's "
            f"0..{run.plan.num_clients - 1}"
        )
    state_folder = _folder(node_config.get("state-dir", run.state_dir))
    return Node(
        partition_id=partition_id,
        data_path=str(node_config.get("data-path", "")),
        grouping=Grouping(
            column=str(node_config.get("group-column", "")),
            pattern=str(node_config.get("group-pattern", "")),
        ),
        model=str(node_config.get("model", "")),
        state_folder=state_folder / str(partition_id) if state_folder else None,
        models_folder=_folder(node_config.get("models-dir", run.models_dir)),
        runs_kept=_whole_number({"keep-runs": RUNS_KEPT, **node_config}, "keep-runs"),
    )


def _whole_number(node_config: Mapping[str, Any], key: str) -> int:
    """Return a number from a node's config.

    Raises
    ------
    ValueError
        If it is missing, or not a whole number of at least 0.
    """
    text = str(node_config.get(key, "missing"))
    if not text.isdecimal():
        raise ValueError(f"this node's {key} is {text} in its config; it should be a whole number")
    return int(text)


def _folder(name: object) -> Path | None:
    return Path(str(name)).expanduser() if name else None
