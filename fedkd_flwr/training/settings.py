"""Settings of the training on private data."""

from typing import Annotated, Literal

from pydantic import Field

from strategies.core.search import SearchRange
from strategies.core.slices import Slice


class TrainingSettings(Slice):
    """Settings of a client's training on its private data in a round.

    Attributes
    ----------
    local_epochs : int
        E, epochs on private data per round.
    local_iterations : int
        tau, random private batches per round instead of epochs; 0 for epochs.
    batch_size : int
        Batch size on private data.
    optimizer : str
        ``sgd``, ``adam`` or ``adamw``.
    learning_rate : float
        Learning rate on private data at the start of the run.
    learning_rate_schedule : str
        Schedule of the learning rate over the rounds: ``constant``, ``cosine`` or ``step``.
    momentum : float
        Momentum of stochastic gradient descent.
    weight_decay : float
        Weight decay of any optimizer.
    precision : str
        Precision of the clients' networks: ``float32``, or ``bf16`` for the operations that
        PyTorch's autocast selects, which is faster on a GPU. Weights, losses and messages stay
        float32.
    """

    local_epochs: int = Field(default=2, ge=1)
    local_iterations: int = Field(default=0, ge=0)
    batch_size: int = Field(default=8, ge=1)
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: Annotated[float, SearchRange(0.001, 0.3, log=True)] = Field(default=0.01, gt=0)
    learning_rate_schedule: Literal["constant", "cosine", "step"] = "constant"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    precision: Literal["float32", "bf16"] = "float32"
