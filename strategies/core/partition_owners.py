"""To whom a partition belongs: to the public key of the node that took it first.

With registered keys a node keeps its key over restarts. Without, it draws one at each start. Grids
without keys bind nothing.
"""

import hashlib
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from strategies.core.replies import Arrays

KEYS = "members/keys"
"""Name in the state: SHA-256 of the key of each partition, (N, 32) uint8, zeros for none."""


class Owners:
    """The keys that partitions belong to; none are bound with 0 partitions."""

    def __init__(self, num_partitions: int) -> None:
        self._num_partitions = num_partitions
        self._keys: dict[int, str] = {}
        self._of_nodes: dict[int, str] = {}

    def look_up(self, grid: Grid) -> None:
        """Ask for the public keys of the connected nodes."""
        if self._num_partitions:
            self._of_nodes = {
                node.node_id: hashlib.sha256(node.public_key).hexdigest()
                for node in grid.get_nodes()
                if node.public_key
            }

    def admit(self, partition_id: int, node_id: int) -> bool:
        """Return whether a node may have a partition: nobody has it, or its key does."""
        owner = self._keys.get(partition_id)
        return owner is None or owner == self._of_nodes.get(node_id)

    def bind(self, partition_id: int, node_id: int) -> None:
        """Give a partition to a node for the rest of the run, if the node has a key."""
        if node_id in self._of_nodes:
            self._keys[partition_id] = self._of_nodes[node_id]

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the keys as an array by its name; empty if no partition has one."""
        if not self._keys:
            return {}
        keys = np.zeros((self._num_partitions, 32), dtype=np.uint8)
        for n, digest in self._keys.items():
            keys[n] = np.frombuffer(bytes.fromhex(digest), dtype=np.uint8)
        return {KEYS: keys}

    def set_state(self, state: Arrays) -> None:
        """Take over the keys that `state` returned."""
        if self._num_partitions and KEYS in state:
            self._keys = {n: bytes(key).hex() for n, key in enumerate(state[KEYS]) if key.any()}
