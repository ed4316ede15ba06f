"""Reproducible random draws: each is a function of a seed, a purpose and indices."""

import zlib

import numpy as np
from numpy.typing import NDArray


def random_generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return the generator of one purpose; equal arguments give equal streams.

    All draws of a purpose have equally many `indices`, such as round and partition-id: NumPy takes
    a missing index as 0.
    """
    purpose_key = zlib.crc32(purpose.encode())
    return np.random.default_rng([seed, purpose_key, *indices])


def drawn_layers(
    generator: np.random.Generator, inputs: int, hidden: int, outputs: int
) -> dict[str, NDArray[np.float32]]:
    """Draw two layers, ``hidden`` (h, i) and ``output`` (o, h), with biases, as PyTorch does."""
    shapes: dict[str, tuple[int, tuple[int, ...]]] = {
        "hidden": (inputs, (hidden, inputs)),
        "hidden-bias": (inputs, (hidden,)),
        "output": (hidden, (outputs, hidden)),
        "output-bias": (hidden, (outputs,)),
    }
    return {
        name: (generator.uniform(-1, 1, shape) / entering**0.5).astype(np.float32)
        for name, (entering, shape) in shapes.items()
    }
