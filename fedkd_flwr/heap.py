"""What the C library does with memory that is freed: keep it for the next use, or give it back.

By itself it gives tensors of many megabytes back to the system as soon as they are freed, and has
each page of them made anew a moment later. That takes small networks side by side a tenth of their
time, and a convolutional network that predicts a sixth.
"""

import ctypes
import sys
from collections.abc import Callable
from functools import cache

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""What the C library's `mallopt` calls two of its limits: from which size on memory does not come
from the heap, and from how much free memory at its end the heap gives some back."""

LARGEST_TENSOR, KEPT_AT_MOST = 2**27, 2**28
"""Both limits, in bytes: what a large network's predictions need. What is larger, such as a message
without end, is gone once it is freed, and leaves no hole."""


@cache
def keep_free_memory() -> None:
    """Keep what is freed for the next use, where the C library can be told to."""
    set_option = _function("mallopt")
    if set_option:
        set_option(MMAP_THRESHOLD, LARGEST_TENSOR)
        set_option(TRIM_THRESHOLD, KEPT_AT_MOST)


def return_free_memory() -> None:
    """Return what is free inside the C library's heap to the system, where the library can.

    Replies and what the server makes of them outlive the training between them, and leave the
    heap full of holes.
    """
    trim = _function("malloc_trim")
    if trim:
        trim(0)


def _function(name: str) -> Callable[..., int] | None:
    """Return a function of the C library by its name; None where there is none."""
    if sys.platform != "linux":
        return None
    function: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return function
