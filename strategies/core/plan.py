"""What is known before a run starts: the settings of a method and the plan of the rounds."""

import functools
import math
from collections.abc import Sequence
from inspect import get_annotations
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from strategies.core.metrics import MEASURES
from strategies.core.randomness import random_generator
from strategies.core.safeguard import SafeguardSettings
from strategies.core.settings_groups import (
    ANY_ON_NODES,
    DEFAULT_ON_NODES,
    NO_EFFECT_ON_RESULTS,
    OnNodes,
    SettingsGroup,
    Words,
    kebab_case,
    some_of,
)


class ImpossiblePlanError(ValueError):
    """An impossible combination of settings; the message says what is allowed."""


def refuse_above(key: str, value: int, most: int, limit: str) -> None:
    """Refuse a setting above a limit, which is given in words too. Raises `ImpossiblePlanError`."""
    if value > most:
        raise ImpossiblePlanError(
            f"{key} = {value} is more than {limit}; set it to at most {most}."
        )


class Settings(SettingsGroup):
    """A method's own settings, read from its table of the run config.

    A subclass names the table and declares one field per setting. Fields that it inherits stay
    in the table of the parent that declared them, so that ``kt-pfl.temperature`` holds for every
    method derived from KT-pFL. Fields of a parent without a table belong to the first subclass
    that names one.
    """

    table: ClassVar[str] = ""

    @classmethod
    @functools.cache
    def key_of(cls, name: str) -> str:
        """Return the flat key of a field, ``kt-pfl.public-batch-size``."""
        declaring = next(kind for kind in cls.__mro__ if name in get_annotations(kind))
        heirs = (kind for kind in reversed(cls.__mro__) if issubclass(kind, declaring))
        table = next((vars(kind)["table"] for kind in heirs if vars(kind).get("table")), cls.table)
        return f"{table}.{kebab_case(name)}"


def multiple_or_none(value: float) -> float:
    """Refuse a limit below the median, which would bind most clients; 0 is no limit."""
    if value and not 1 <= value < math.inf:
        raise ValueError("it should be at least 1, or 0 for no limit")
    return value


class PlanSettings(SettingsGroup):
    """Number of clients and rounds, client sampling, and timeouts."""

    num_clients: Annotated[int, ANY_ON_NODES] = Field(default=8, ge=0)
    """N, the number of clients, with partition-ids 0..N-1; 0 for as many as are connected when the
    run starts. The default is 8 under fedkd run and fedkd_flwr.run with clients on this machine,
    and 0 under flwr run and in a deployment."""
    num_server_rounds: Annotated[int, OnNodes(1, 1000)] = Field(default=10, ge=1)
    """Number of communication rounds."""
    public_size: Annotated[int, OnNodes(0, 10000)] = Field(default=200, ge=0)
    """P, the number of public samples per round."""
    public_hash: Annotated[str, ANY_ON_NODES] = ""
    """Hash of the public set; clients with another public set are excluded. Empty for the hash that
    most clients report."""
    new_clients: Annotated[float, ANY_ON_NODES] = Field(default=0.0, ge=0, lt=1)
    """Share of the clients that take no part in the training and join after it, in [0, 1)."""
    new_client_rounds: Annotated[int, OnNodes(0, 1000)] = Field(default=0, ge=0)
    """Number of rounds of a new client; 0 for as many as the training has."""
    fraction_train: Annotated[float, ANY_ON_NODES] = Field(default=1.0, gt=0, le=1)
    """Share of the training clients that is sampled in a round, in (0, 1]."""
    min_replies: Annotated[int, ANY_ON_NODES] = Field(default=1, ge=1)
    """Smallest number of valid replies; a round with fewer stops the run."""
    evaluate_every: Annotated[int, ANY_ON_NODES] = Field(default=1, ge=1)
    """Evaluate the clients every that many rounds, and after the last round."""
    evaluate_clients: Annotated[int, ANY_ON_NODES] = Field(default=0, ge=0)
    """Number of clients in each evaluation, drawn by seed and round; 0 for all. The round's row
    then has the standard error of the mean accuracy."""
    patience: Annotated[int, ANY_ON_NODES] = Field(default=0, ge=0)
    """Early stopping: number of evaluations in a row without a better mean validation accuracy
    after which one more round is the last; 0 for no early stopping."""
    mixing: Annotated[Literal["mean", "median", "trimmed-mean"], ANY_ON_NODES] = "mean"
    """How parameters of clients are averaged. ``median`` and ``trimmed-mean`` protect against a
    minority of poisoned models and weigh all clients alike. Methods that exchange predictions have
    a ``mixing`` of their own."""
    weighting: Annotated[Literal["samples", "uniform"], ANY_ON_NODES] = "samples"
    """Weights of clients in a mean of parameters: samples for their numbers of training samples, or
    uniform for equal weights."""
    weight_cap: Annotated[float, AfterValidator(multiple_or_none), ANY_ON_NODES] = 5.0
    """Largest number of samples that counts for a client in weights, as a multiple of the median
    over the clients; 0 for no limit. The number is what the client claims."""
    update_cap: Annotated[float, AfterValidator(multiple_or_none), ANY_ON_NODES] = 10.0
    """Largest norm of a client's update of parameters, or of its mean feature of a class, as a
    multiple of the median norm of the round; what is longer is shortened to it. 0 for no limit."""
    safeguard: SafeguardSettings = SafeguardSettings()
    """A private model of each client beside the method's."""
    measures: Annotated[
        Words, AfterValidator(some_of(MEASURES)), NO_EFFECT_ON_RESULTS, DEFAULT_ON_NODES
    ] = ()
    """Further measures of an evaluation, separated by commas: ``calibration``, ``auc``, ``f1``,
    ``balanced-accuracy``, ``classes``; empty for none."""
    record_answers: Annotated[bool, NO_EFFECT_ON_RESULTS] = True
    """Whether clients send which test images their model gets right, one bit per image, and the run
    records it. Two methods are then compared image by image. The default is true under fedkd run
    and fedkd_flwr.run with clients on this machine, and false under flwr run and in a
    deployment."""
    seed: Annotated[int, ANY_ON_NODES] = Field(default=0, ge=0)
    """Seed of all random draws."""
    connect_timeout: Annotated[float, NO_EFFECT_ON_RESULTS] = Field(default=60.0, gt=0)
    """Seconds to wait for all clients before the first round. A resumed run then goes on with those
    that are connected, if they are at least ``min-replies``."""
    bind_partitions: Annotated[bool, NO_EFFECT_ON_RESULTS] = True
    """Whether a partition stays with the key of the node that took it, in a deployment. Without
    registered keys, a node has another key after a restart; then set it to false."""
    round_timeout: Annotated[float, NO_EFFECT_ON_RESULTS] = Field(default=3600.0, gt=0)
    """Seconds to wait for the replies to one exchange, such as PersFL's second stage. It has no
    effect on clients that train in one process, unless ``cohort`` is off."""
    close_after: Annotated[float, ANY_ON_NODES] = Field(default=0.0, ge=0)
    """Seconds after which an exchange ends once `min_replies` have come, in a deployment; 0 waits
    for all. A client that is late gets no message until it has replied. Its soft predictions count
    in the round in which they come, if `public_size` is the whole public set; else they are
    dropped, as parameters are."""
    delay: Annotated[float, DEFAULT_ON_NODES] = Field(default=0.0, ge=0)
    """Simulates late clients, with `close_after`: mean of the seconds after which a training reply
    comes, where no time passes. A client's own mean and each delay are drawn from exponential
    distributions. A reply that is late comes in the next round."""

    @property
    def num_new(self) -> int:
        """Number of clients that join after the training."""
        return round(self.new_clients * self.num_clients)

    @property
    def num_training(self) -> int:
        """Number of clients in training."""
        return self.num_clients - self.num_new

    @property
    def sample_size(self) -> int:
        """Number of clients sampled in a round."""
        return round(self.fraction_train * self.num_training)

    @property
    def new_client_ids(self) -> list[int]:
        """Partition-ids of the new clients in ascending order, the same for every method."""
        generator = random_generator(self.seed, "new-clients")
        drawn = generator.choice(self.num_clients, self.num_new, replace=False)
        return sorted(drawn.tolist())

    def check(self) -> None:
        """Refuse numbers of clients that are impossible together. Raises `ImpossiblePlanError`."""
        if self.new_clients and not self.num_new:
            raise ImpossiblePlanError(
                f"new-clients = {self.new_clients:g} of {self.num_clients} clients is less than "
                f"one; set it to at least {1 / self.num_clients:.3g}, or to 0."
            )
        if not self.num_training:
            raise ImpossiblePlanError(
                f"new-clients = {self.new_clients:g} of {self.num_clients} clients leaves none in "
                f"training; set it to at most {1 - 1 / self.num_clients:.3g}."
            )
        if self.sample_size < 1:
            raise ImpossiblePlanError(
                f"fraction-train = {self.fraction_train:g} of {self.num_training} clients is less "
                f"than one client per round; set it to at least {1 / self.num_training:.3g}."
            )
        if self.delay and not self.close_after:
            raise ImpossiblePlanError(
                "delay needs close-after, the seconds that a round waits for late clients."
            )
        if self.min_replies > self.sample_size:
            raise ImpossiblePlanError(
                f"min-replies = {self.min_replies} is more than the clients sampled in a round "
                f"({self.sample_size}); set it to at most {self.sample_size}, or a larger "
                "fraction-train."
            )


class RunPlan(PlanSettings):
    """What the server knows about a run before it starts."""

    num_clients: Annotated[int, ANY_ON_NODES] = Field(default=8, ge=1)
    num_classes: int = Field(ge=1)
    """K, the number of classes."""
    run_id: str = ""
    """Name of the run, kept when it is resumed: clients store their memory on disk under it."""
    newcomers: tuple[int, ...] = ()
    """Partition-ids of the clients that join a finished run; they are new clients."""

    @property
    def num_new(self) -> int:
        """Number of clients that join after the training."""
        return len(self.newcomers) or super().num_new

    @property
    def new_client_ids(self) -> list[int]:
        """Partition-ids of the clients that join after the training, in ascending order."""
        return list(self.newcomers) or super().new_client_ids

    def is_evaluated(self, server_round: int) -> bool:
        """Return whether clients are evaluated in a round."""
        return server_round == self.num_server_rounds or server_round % self.evaluate_every == 0

    def evaluated(self, server_round: int, candidates: Sequence[int]) -> list[int]:
        """Return which clients are evaluated in a round, of some in ascending order."""
        if not self.is_evaluated(server_round):
            return []
        size = self.evaluate_clients or len(candidates)
        return sample_clients(candidates, size, self.seed, server_round, purpose="evaluation")


def sample_clients(
    candidates: Sequence[int],
    size: int,
    seed: int,
    server_round: int,
    probabilities: NDArray[np.float64] | None = None,
    purpose: str = "sampling",
) -> list[int]:
    """Sample clients without replacement, as a function of seed, round and purpose.

    Candidates and sample are partition-ids in ascending order; all candidates if there are no more
    than `size`. `probabilities` are positive weights of the candidates, uniform if omitted.
    """
    if size >= len(candidates):
        return sorted(candidates)
    if probabilities is not None:
        probabilities = probabilities / probabilities.sum()
    generator = random_generator(seed, purpose, server_round)
    chosen = generator.choice(candidates, size, replace=False, p=probabilities)
    return sorted(int(partition_id) for partition_id in chosen)
