"""The public set: unlabeled images that all clients predict on.

It is either a part of the data set, held out before the clients get theirs, or another data
set in the private images' shape (PerFed-CKT §5: CIFAR-100 for CIFAR-10). Its labels go nowhere.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkd_flwr.data.decoding import convert_images
from fedkd_flwr.data.registry import DataError, Shape
from strategies.core.randomness import random_generator


def split_public(
    num_samples: int, held_out: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Hold out a random part of the samples; return positions, private and public."""
    if not 0 <= held_out < num_samples:
        raise DataError(
            f"cannot hold out {held_out} of {num_samples} samples as the public set; set "
            f"held-out-size to less than {num_samples}, such as {num_samples // 5}, and "
            "public-size to at most that"
        )
    order = random_generator(seed, "held-out").permutation(num_samples)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def in_private_shape(images: Tensor, shape: Shape, name: str) -> Tensor:
    """Return the images of another data set in the private shape, (n, ...) uint8."""
    if images.shape[1:] == shape:
        return images
    if images.is_floating_point() or len(shape) != 3:
        raise DataError(
            f"public-dataset {name} has samples {tuple(images.shape[1:])}, and the private ones "
            f"are {shape}; only images are resized"
        )
    return convert_images(images, shape)


def public_subset(pool_size: int, size: int, seed: int, server_round: int) -> NDArray[np.int64]:
    """Return the sorted public samples (P,) of a round, the same on server and clients."""
    require_pool(pool_size, size)
    generator = random_generator(seed, "public-subset", server_round)
    return np.sort(generator.permutation(pool_size)[:size])


def require_pool(pool_size: int, size: int) -> None:
    """Refuse a public subset that is larger than the pool."""
    if size > pool_size:
        raise DataError(
            f"public-size is {size}, but the public set holds {pool_size} samples, the most that "
            f"public-size can be"
        )


def number_in_common(public: Tensor, own: Tensor) -> int:
    """Return how many samples of a node's own data are in the public pool, by content."""
    known = set(digests_of(public))
    return sum(digest in known for digest in digests_of(own)) if known else 0


def digests_of(samples: Tensor) -> Iterator[bytes]:
    """Return a digest of the content of each sample, by which copies are found."""
    for sample in samples.cpu().numpy():
        yield hashlib.blake2b(np.ascontiguousarray(sample).data, digest_size=16).digest()
