"""What a client remembers between messages, in Flower's context and in a folder."""

from fedkd_flwr.memory.context import (
    InProcessContext,
    PartOfMemory,
    Place,
    memories_in,
    own_context,
)
from fedkd_flwr.memory.folder import (
    PROGRESS,
    RUNS_KEPT,
    ForgottenRunError,
    MemoryFolder,
    forget_old_runs,
)
from fedkd_flwr.memory.lock import locked
from fedkd_flwr.memory.memory import MODEL, PRIVATE, SPENT, Memory
from fedkd_flwr.memory.round_files import (
    ROUNDS_KEPT,
    TOGETHER,
    DamagedMemoryError,
    SharedFolder,
    round_of,
)
from fedkd_flwr.memory.state import State, StoredState

__all__ = [
    "MODEL",
    "PRIVATE",
    "PROGRESS",
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
