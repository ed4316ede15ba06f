"""What a client remembers between messages, in Flower's context and in a folder."""

from fedkd_flwr.memory.context import InProcessContext, own_context
from fedkd_flwr.memory.folder import (
    PROGRESS,
    ROUNDS_KEPT,
    RUNS_KEPT,
    DamagedMemoryError,
    ForgottenRunError,
    MemoryFolder,
    forget_old_runs,
    read_numbers,
    require_readable,
    round_of,
)
from fedkd_flwr.memory.lock import locked
from fedkd_flwr.memory.memory import Memory

__all__ = [
    "PROGRESS",
    "ROUNDS_KEPT",
    "RUNS_KEPT",
    "DamagedMemoryError",
    "ForgottenRunError",
    "InProcessContext",
    "Memory",
    "MemoryFolder",
    "forget_old_runs",
    "locked",
    "own_context",
    "read_numbers",
    "require_readable",
    "round_of",
]
