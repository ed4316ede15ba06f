"""Where the run is, as a message says it, and where a client's models go by that."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkd_flwr.clients.node import Node
from fedkd_flwr.export import keep_only_best, round_folder


@dataclass(frozen=True)
class Course:
    """What a message says of the run.

    Attributes
    ----------
    is_last_round : bool
        Whether the message is of the run's last round.
    best_round : int
        The round before with the best accuracy on validation data, 0 for none.
    trained_rounds : int
        Rounds of training that were over when the client came; 0 if it is in training.
    """

    is_last_round: bool = False
    best_round: int = 0
    trained_rounds: int = 0

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Course":
        """Read the config of a message."""
        return cls(
            bool(config.get("last-round")),
            int(config.get("best-round", 0)),
            int(config.get("trained-rounds", 0)),
        )

    def drawn_in(self, server_round: int) -> int:
        """Return the round that draws the public samples of a round; 0 for those of all rounds.

        After the training none are drawn any more, and those of its last round serve.
        """
        return self.trained_rounds if self.trained_rounds and server_round else server_round

    def starts_over(self, server_round: int) -> bool:
        """Return whether a client comes in this round, after the training, from nothing."""
        return self.trained_rounds > 0 and server_round == 1

    def export_folders(self, node: Node, server_round: int, keep_best: bool) -> list[Path]:
        """Return where the evaluated model goes, after making room for it.

        Parameters
        ----------
        node : Node
            Whose model it is.
        server_round : int
            The round.
        keep_best : bool
            Whether models of the best round are kept besides those of the last.
        """
        folder = node.models_folder
        if folder is None:
            return []
        last = [folder] if self.is_last_round else []
        if not keep_best or self.trained_rounds:
            return last
        keep_only_best(folder, node.partition_id, self.best_round)
        return [*last, round_folder(folder, server_round)]
