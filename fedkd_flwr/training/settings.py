"""Settings of the training on private data."""

from typing import Annotated, Literal

from pydantic import Field

from strategies.core.settings_groups import (
    ANY_ON_NODES,
    DEFAULT_ON_NODES,
    OnNodes,
    SearchRange,
    SettingsGroup,
    zero_or_at_least,
)

SMALLEST_NOISE = 0.01
"""Smallest noise multiplier of DP-SGD. Accounting overflows far below, and finds no epsilon."""

LEAST_ON_NODES = 0.5
"""Its batches may have a single sample, which less noise would not hide."""


class DPSGDSettings(SettingsGroup):
    """Differential privacy of training samples, by clipped and noised gradients (DP-SGD)."""

    noise_multiplier: Annotated[
        float, zero_or_at_least(SMALLEST_NOISE), OnNodes(LEAST_ON_NODES, 1e4, off=0)
    ] = Field(default=0.0, ge=0, le=1e4)
    """sigma, the standard deviation of the noise on the sum of a batch's gradients, as a multiple
    of the clipping norm; 0 for plain training, else at least 0.01."""
    clip_norm: Annotated[float, ANY_ON_NODES] = Field(default=1.0, ge=1e-6, le=1e6)
    """C, the largest norm of the gradient of one sample, in a range in which single precision holds
    the noise."""
    delta: Annotated[float, ANY_ON_NODES] = Field(default=1e-5, gt=0, lt=1)
    """delta of (epsilon, delta)-differential privacy, at which epsilon is reported; below one over
    the number of a client's training samples."""
    noise_seed: Annotated[int, DEFAULT_ON_NODES] = Field(default=-1, ge=-1)
    """Seed of noise and samples for tests; -1 for secret ones. With a known seed nothing is
    private."""

    @classmethod
    def key_of(cls, name: str) -> str:
        """Return the flat key of a field."""
        return f"dp-sgd-{super().key_of(name)}"


class TrainingSettings(SettingsGroup):
    """Settings of a client's training on its private data in a round."""

    local_epochs: Annotated[int, OnNodes(1, 100)] = Field(default=2, ge=1)
    """E, epochs on private data per round."""
    local_iterations: Annotated[int, DEFAULT_ON_NODES] = Field(default=0, ge=0)
    """tau, random private batches per round instead of epochs; 0 for epochs."""
    fine_tune_epochs: Annotated[int, OnNodes(0, 100)] = Field(default=0, ge=0)
    """Epochs on private data before each evaluation, for any method; the result is not kept."""
    fine_tune_early_stopping: Annotated[bool, DEFAULT_ON_NODES] = False
    """Whether a client with validation data is evaluated after the best of these epochs, or without
    any: most correct validation samples, then the lowest loss."""
    batch_size: Annotated[int, OnNodes("min-class-count", 4096)] = Field(default=8, ge=1)
    """Batch size on private data."""
    batch_order: Annotated[int, ANY_ON_NODES] = Field(default=0, ge=0)
    """Number of the random order in which private batches are drawn; nothing else depends on it.
    Runs of one method that differ in it alone show how much chance changes."""
    optimizer: Annotated[Literal["sgd", "adam", "adamw"], ANY_ON_NODES] = "sgd"
    """``sgd``, ``adam`` or ``adamw``."""
    learning_rate: Annotated[float, SearchRange(0.001, 0.3, log=True), OnNodes(0, 1)] = Field(
        default=0.01, gt=0
    )
    """Learning rate on private data at the start of the run."""
    learning_rate_schedule: Annotated[Literal["constant", "cosine", "step"], ANY_ON_NODES] = (
        "constant"
    )
    """Schedule of the learning rate over the rounds: ``constant``; ``cosine``, half a wave down to
    nearly 0 in the last round; or ``step``, a tenth after half of the rounds and a hundredth after
    three quarters."""
    momentum: Annotated[float, OnNodes(0, 0.99)] = Field(default=0.9, ge=0, lt=1)
    """Momentum of stochastic gradient descent."""
    weight_decay: Annotated[float, OnNodes(0, 0.1)] = Field(default=0.0, ge=0)
    """Weight decay of any optimizer."""
    precision: Annotated[Literal["float32", "bf16"], ANY_ON_NODES] = "float32"
    """Precision of the clients' networks: ``float32``, or ``bf16`` for the operations that
    PyTorch's autocast selects. On a GPU it can be slower for small batches. Weights, losses and
    messages stay float32."""
