"""Masks over the public samples of a round, as they are sent: eight samples per byte."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def packed_mask(mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Encode a mask (P,) for the network, eight samples per byte."""
    return np.packbits(mask)


def unpacked_mask(bits: NDArray[Any], size: int) -> NDArray[np.bool_]:
    """Decode a mask (P,)."""
    return np.unpackbits(bits, count=size).astype(np.bool_)
