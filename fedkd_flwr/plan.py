"""What a run config says of the run as a whole: clients, rounds, sampling and patience."""

from typing import Annotated

from pydantic import Field

from fedkd_flwr.slices import PLACE, Slice


class PlanSettings(Slice):
    """Who takes part and how often, and how long the server waits.

    Attributes
    ----------
    num_clients : int
        N.
    num_server_rounds : int
        Communication rounds.
    public_size : int
        P, public samples used in a round.
    public_hash : str
        Hash that every client's public set must have; empty for the one most clients have.
    fraction_train : float
        Share of the clients sampled in a round.
    min_replies : int
        A round with fewer valid replies stops the run.
    evaluate_every : int
        Evaluate every that many rounds, and after the last.
    seed : int
        Seed of every draw.
    connect_timeout, round_timeout : float
        Seconds to wait for clients to connect, and for the replies of a round.
    """

    num_clients: int = Field(default=8, ge=1)
    num_server_rounds: int = Field(default=6, ge=1)
    public_size: int = Field(default=200, ge=0)
    public_hash: str = ""
    fraction_train: float = Field(default=1.0, gt=0, le=1)
    min_replies: int = Field(default=1, ge=1)
    evaluate_every: int = Field(default=1, ge=1)
    seed: int = Field(default=0, ge=0)
    connect_timeout: Annotated[float, PLACE] = Field(default=60.0, gt=0)
    round_timeout: Annotated[float, PLACE] = Field(default=3600.0, gt=0)
