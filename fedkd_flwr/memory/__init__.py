"""What a client remembers between messages, in Flower's context and in a folder."""

from fedkd_flwr.memory.folder import (
    ROUNDS_KEPT,
    RUNS_KEPT,
    TOGETHER,
    DamagedMemoryError,
    ForgottenRunError,
    MemoryFolder,
    SharedFolder,
    forget_old_runs,
    locked,
    round_of,
)
from fedkd_flwr.memory.memory import (
    MODEL,
    SPENT,
    InProcessContext,
    Memory,
    PartOfMemory,
    Place,
    State,
    StoredState,
    memories_in,
    own_context,
)

__all__ = [
    "MODEL",
    "ROUNDS_KEPT",
    "RUNS_KEPT",
    "SPENT",
    "TOGETHER",
    "DamagedMemoryError",
    "ForgottenRunError",
    "InProcessContext",
    "Memory",
    "MemoryFolder",
    "PartOfMemory",
    "Place",
    "SharedFolder",
    "State",
    "StoredState",
    "forget_old_runs",
    "locked",
    "memories_in",
    "own_context",
    "round_of",
]
