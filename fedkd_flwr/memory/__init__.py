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
    PRIVATE,
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
