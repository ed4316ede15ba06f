"""What a message asks a client for, and what the client's method replies."""

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from fedkd_flwr.clients.policy import PolicyError
from strategies.core.metrics import IN_TRAINING, EvaluatedModel

Arrays = dict[str, NDArray[Any]]
"""Named arrays of a message."""

TRAIN = "train"
"""Phase of the message with which a round begins."""


@dataclass(frozen=True)
class Request:
    """A message, as a client reads it."""

    arrays: Arrays = field(default_factory=dict)
    """Named arrays from the server."""
    server_round: int = 0
    """The round of the run, from 1."""
    phase: str = TRAIN
    """``train``, or the name of a further exchange of the method."""
    evaluate: bool = False
    """Whether the reply reports counts of the models that the method evaluates in training."""
    evaluate_distilled: bool = False
    """Whether it reports counts of the last round's model after its distillation."""
    is_last_round: bool = False
    """Whether the message belongs to the run's last round."""
    best_round: int = 0
    """The earlier round with the best validation accuracy, 0 for none."""
    trained_rounds: int = 0
    """Rounds of training before a new client joined; 0 if the client takes part in the training."""
    run_id: str = ""
    """The run; empty for none."""
    starts: tuple[int, ...] = ()
    """Rounds that were complete at each start of the run; empty for a new client."""

    @classmethod
    def read(cls, arrays: Arrays, config: Mapping[str, Any]) -> "Request":
        """Read a message from its arrays and its config.

        Refused are ids of runs that, as names of folders, would lead elsewhere, and rounds below 1.
        """
        run_id = str(config.get("run-id", ""))
        if run_id and not re.fullmatch("[0-9a-f]+", run_id):
            raise PolicyError("the id of the run is not made of the digits 0-9 and a-f")
        server_round = int(config["server-round"])
        if server_round < 1:
            raise PolicyError("the message names no round of a run; the first round is 1")
        return cls(
            arrays,
            server_round,
            str(config.get("phase", TRAIN)),
            bool(config.get("evaluate")),
            bool(config.get("evaluate-distilled")),
            bool(config.get("last-round")),
            int(config.get("best-round", 0)),
            int(config.get("trained-rounds", 0)),
            run_id,
            # A memory of no round is of no dropped one, whatever a server says.
            tuple(max(0, int(known)) for known in config.get("starts", ())),
        )

    @classmethod
    def of_list(cls, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> "Request":
        """Read a message of Flower's `NumPyClient`, whose arrays are named in its config."""
        return cls.read(dict(zip(config["names"], parameters, strict=True)), config)

    @property
    def starts_over(self) -> bool:
        """Whether a new client joins with this message, after the training."""
        return self.trained_rounds > 0 and self.server_round == 1

    def asks_for(self, model: EvaluatedModel) -> bool:
        """Return whether counts of a model are due, if the method evaluates it."""
        if model == "distilled":
            return self.evaluate_distilled
        return self.evaluate or model not in IN_TRAINING

    def drawn_in(self, server_round: int) -> int:
        """Return the round whose draw selects the public samples of a round; 0 for all rounds."""
        return self.trained_rounds if self.trained_rounds and server_round else server_round


@dataclass(frozen=True)
class TrainReply:
    """A client's reply to a message."""

    arrays: Arrays = field(default_factory=dict)
    """Named arrays for the server. No other arrays leave the client."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers for the server, as declared by the strategy, and the counts of an evaluation."""
    answers: bytes = b""
    """Which test images the evaluated model classifies correctly, if the run records it."""


def require_reply(reply: object, client: type) -> None:
    """Refuse what a client's `train` returned if it is no `TrainReply`."""
    name = f"{client.__qualname__}.train"
    if isinstance(reply, TrainReply):
        for metric, value in reply.metrics.items():
            if not isinstance(value, int | float):
                kind = type(value).__name__
                raise TypeError(f"{name} reports {metric} as a {kind}; write float(...)")
        return
    if isinstance(reply, Generator):
        raise TypeError(
            f"{name} yields jobs; it is a plain function now: remove `yield from` and `yield`, and "
            "write `loss = self.train_locally(server_round)` or `self.do(job)`"
        )
    raise TypeError(f"{name} returned a {type(reply).__name__}; return a TrainReply")
