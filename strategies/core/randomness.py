"""Reproducible random draws: each is a function of a seed, a purpose and indices."""

import zlib

import numpy as np


def random_generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return the generator of one purpose; equal arguments give equal streams.

    All draws of a purpose have equally many `indices`, such as round and partition-id: NumPy takes
    a missing index as 0.
    """
    purpose_key = zlib.crc32(purpose.encode())
    return np.random.default_rng([seed, purpose_key, *indices])
