"""What Ctrl-C does: end the process at once, or interrupt a run that can be continued.

It is loaded before everything else of the command line, and imports the standard library alone.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ctrl_c_ends_the_process() -> Iterator[None]:
    """Let Ctrl-C end the process without output.

    An import that raises `KeyboardInterrupt` prints a traceback, or, in PyTorch, another error.
    """
    with _on_ctrl_c(signal.SIG_DFL):
        yield


@contextmanager
def ctrl_c_interrupts() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt`, where there is something to say or to clean up."""
    with _on_ctrl_c(signal.default_int_handler):
        yield


@contextmanager
def _on_ctrl_c(handler: Any) -> Iterator[None]:
    # Signals belong to the main thread.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
