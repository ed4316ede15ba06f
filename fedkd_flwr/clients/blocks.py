"""Memory blocks outside the heap for the tensors that clients keep.

Each round replaces the stored tensors of every client. On the heap they would lie between the
short-lived tensors of training. The resulting fragmentation doubles the size of the process.
"""

import math
import mmap
import sys
from collections import defaultdict
from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

BLOCK = 2**24
"""Bytes of a block. A larger tensor gets a block of its own size."""

ALIGNMENT = 64
"""Bytes of a cache line. The size of each place in a block is a multiple of it."""


class Blocks:
    """Places for tensors, which are reused after they are freed."""

    def __init__(self) -> None:
        self._free: dict[Hashable, list[Tensor]] = defaultdict(list)
        self._rest = torch.empty(0, dtype=torch.uint8)

    def copy_of(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor in a free place."""
        alike = self._free[tensor.shape, tensor.dtype, tensor.device]
        place = alike.pop() if alike else self._new_place(tensor)
        return place.copy_(tensor.detach())

    def free(self, tensors: Iterable[Tensor]) -> None:
        """Free the places of tensors that are no longer read."""
        for tensor in tensors:
            # A tensor with its own block, or without one, is freed with its last reference.
            if tensor.untyped_storage().nbytes() > _place(tensor):
                self._free[tensor.shape, tensor.dtype, tensor.device].append(tensor)

    def _new_place(self, tensor: Tensor) -> Tensor:
        """Take a place for a tensor of this kind from the current block, or from a new one."""
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
    """Allocate bytes directly from the operating system, where it allows that."""
    if sys.platform == "win32":
        return torch.empty(size, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8)
