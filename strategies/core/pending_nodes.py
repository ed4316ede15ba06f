"""Nodes that are connected, but no clients: why, and when they are asked again."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from logging import WARNING

from strategies.core.flower import log

LONGEST_PAUSE = 8
"""Largest number of rounds between two queries to a node without a valid answer."""


@dataclass
class PendingNode:
    """A connected node without a valid answer yet; each reason is logged once."""

    failures: int = 0
    next_round: int = 0
    reasons: set[str] = field(default_factory=set)


class PendingNodes:
    """The nodes without a valid answer, by node id."""

    def __init__(self) -> None:
        self._nodes: dict[int, PendingNode] = {}

    def to_ask(self, node_ids: Iterable[int], server_round: int) -> list[int]:
        """Return those of some nodes that were not asked before, or are asked again now."""
        nodes = self._nodes
        return sorted(n for n in node_ids if n not in nodes or nodes[n].next_round <= server_round)

    def exclude(self, node_id: int, server_round: int, reason: str) -> None:
        """Exclude a node for now; it is asked again after 1, 2, 4, 8, 8, … rounds."""
        node = self._nodes.setdefault(node_id, PendingNode())
        node.next_round = server_round + min(2**node.failures, LONGEST_PAUSE)
        node.failures += 1
        if reason not in node.reasons:
            log(WARNING, "Excluded: %s", reason)
        node.reasons.add(reason)

    def admit(self, node_id: int) -> None:
        """Forget a node, which is a client from now on."""
        self._nodes.pop(node_id, None)

    def reasons_of(self, node_id: int) -> list[str]:
        """Return why a node was excluded, in alphabetical order; empty for one never asked."""
        return sorted(self._nodes[node_id].reasons) if node_id in self._nodes else []

    def reasons(self) -> list[str]:
        """Return why nodes were excluded, node by node."""
        return [reason for node_id in self._nodes for reason in self.reasons_of(node_id)]
