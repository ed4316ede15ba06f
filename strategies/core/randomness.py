"""Reproducible random draws: each is a function of a seed, a purpose and indices.

Server and clients derive the same numbers, so that no random numbers have to be sent. A resumed run
draws the same numbers as an uninterrupted one.
"""

import zlib

import numpy as np


def random_generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return the generator of one purpose.

    Parameters
    ----------
    seed : int
        Seed of the run, at least 0.
    purpose : str
        Purpose of the draw, such as ``"sampling"`` or ``"batches"``. Two purposes never share a
        stream.
    *indices : int
        Round, partition-id or other indices that distinguish draws of one purpose. All draws of a
        purpose have equally many: NumPy takes a missing index as 0.

    Returns
    -------
    numpy.random.Generator
        A new generator; equal arguments give equal streams.
    """
    purpose_key = zlib.crc32(purpose.encode())
    return np.random.default_rng([seed, purpose_key, *indices])
