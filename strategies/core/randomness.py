"""Random draws that repeat: every draw is a function of a seed, a purpose and indices.

Server and clients derive the same numbers from the same names, so that nothing random
has to travel in a message, and a resumed run draws what an uninterrupted one would.
"""

import zlib

import numpy as np


def random_generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return the generator that belongs to one purpose.

    Parameters
    ----------
    seed : int
        Seed of the run, at least 0.
    purpose : str
        What the draw is for, such as ``"sampling"`` or ``"batches"``. Two purposes
        never share a stream.
    *indices : int
        Round, partition-id or whatever else tells two draws of one purpose apart.

    Returns
    -------
    numpy.random.Generator
        A fresh generator; the same arguments give the same stream.
    """
    purpose_key = zlib.crc32(purpose.encode())
    return np.random.default_rng([seed, purpose_key, *indices])
