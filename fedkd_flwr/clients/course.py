"""The state of the run according to a message, and where a client's models are exported."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkd_flwr.clients.node import Node
from fedkd_flwr.export import keep_only_best, round_folder


@dataclass(frozen=True)
class Course:
    """The state of the run, as a message states it.

    Attributes
    ----------
    is_last_round : bool
        Whether the message belongs to the run's last round.
    best_round : int
        The earlier round with the best validation accuracy, 0 for none.
    trained_rounds : int
        Rounds of training before a new client joined; 0 if the client takes part in the training.
    run_id : str
        The run; empty for none.
    """

    is_last_round: bool = False
    best_round: int = 0
    trained_rounds: int = 0
    run_id: str = ""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Course":
        """Read the config of a message."""
        return cls(
            bool(config.get("last-round")),
            int(config.get("best-round", 0)),
            int(config.get("trained-rounds", 0)),
            str(config.get("run-id", "")),
        )

    def drawn_in(self, server_round: int) -> int:
        """Return the round whose draw selects the public samples of a round; 0 for all rounds.

        After the training there are no new draws, and the samples of its last round are used.
        """
        return self.trained_rounds if self.trained_rounds and server_round else server_round

    def starts_over(self, server_round: int) -> bool:
        """Return whether a new client joins in this round, after the training."""
        return self.trained_rounds > 0 and server_round == 1

    def export_folders(self, node: Node, server_round: int, keep_best: bool) -> list[Path]:
        """Return the folders for the evaluated model, after removing older models there.

        Parameters
        ----------
        node : Node
            The node whose model is exported.
        server_round : int
            The round.
        keep_best : bool
            Whether models of the best round are kept in addition to those of the last round.
        """
        folder = node.models_folder
        if folder is None:
            return []
        # Where the node has its own operator, no run replaces the model of another.
        keeps_versions = not node.policy.trust_server
        folder = folder / self.run_id if keeps_versions else folder
        of_round = round_folder(folder, server_round)
        last = [of_round if keeps_versions else folder] if self.is_last_round else []
        if not keep_best or self.trained_rounds:
            return last
        keep_only_best(folder, node.partition_id, self.best_round)
        return list(dict.fromkeys([*last, of_round]))
