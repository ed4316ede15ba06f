"""Where the tensors that many clients keep lie: in blocks of memory outside the heap.

Each round replaces what every client keeps. On the heap, between the short-lived tensors of the
training, that leaves holes which fit nothing, and the process grows to twice what is kept.
"""

import math
import mmap
import sys
from collections import defaultdict
from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

BLOCK = 2**24
"""Bytes of a block, unless a single tensor needs more."""

ALIGNMENT = 64
"""Bytes to a multiple of which a tensor's place in a block is rounded, a processor's cache line."""


class Blocks:
    """Places for tensors, used again once nobody keeps what is there."""

    def __init__(self) -> None:
        self._free: dict[Hashable, list[Tensor]] = defaultdict(list)
        self._rest = torch.empty(0, dtype=torch.uint8)

    def copy_of(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor, in a place that is free."""
        alike = self._free[tensor.shape, tensor.dtype, tensor.device]
        place = alike.pop() if alike else self._new_place(tensor)
        return place.copy_(tensor.detach())

    def free(self, tensors: Iterable[Tensor]) -> None:
        """Free the places of tensors that nobody reads any more."""
        for tensor in tensors:
            # What fills a block of its own, or lies in none, is gone with its last reader.
            if tensor.untyped_storage().nbytes() > _place(tensor):
                self._free[tensor.shape, tensor.dtype, tensor.device].append(tensor)

    def _new_place(self, tensor: Tensor) -> Tensor:
        """Cut a place for a tensor of this kind from the current block, or from a new one."""
        if tensor.device.type != "cpu" or not tensor.nbytes:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        needed = _place(tensor)
        if needed > len(self._rest):
            self._rest = _new_block(max(needed, BLOCK))
        place, self._rest = self._rest[: tensor.nbytes], self._rest[needed:]
        return place.view(tensor.dtype).view(tensor.shape)


def _place(tensor: Tensor) -> int:
    """Return the bytes of a tensor's place."""
    return math.ceil(tensor.nbytes / ALIGNMENT) * ALIGNMENT


def _new_block(size: int) -> Tensor:
    """Return so many bytes from the system itself, where one can ask it."""
    if sys.platform == "win32":
        return torch.empty(size, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8)
