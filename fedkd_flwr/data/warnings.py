"""Mistakes in custom data: those that a run survives are warned about and not refused."""

import functools
from collections.abc import Sequence
from logging import WARNING

import numpy as np
from torch import Tensor

from fedkd_flwr.custom_objects.importing import OBJECT
from fedkd_flwr.data.client_data import Parts
from fedkd_flwr.data.custom_data import OwnArrays, call_for_data
from fedkd_flwr.data.public import digests_of
from fedkd_flwr.data.registry import (
    BY_COLUMN,
    DATASETS,
    SYMMETRIC,
    DataError,
    DataFormat,
    is_function,
)
from fedkd_flwr.data.settings import AUTO, DataSettings
from fedkd_flwr.data.sources import load_images
from strategies.core.flower import log

CHANNELS = (1, 3, 4)
"""How many channels an image has."""


def warnings_about_data(settings: DataSettings) -> list[str]:
    """Return what is suspicious about the private data, one sentence each."""
    name = settings.dataset
    if name in DATASETS:
        return []
    found = load_images(name, settings.data_root, settings.data_format)
    warnings = [found.warning] if found.warning else []
    lowest, highest = int(found.labels.min()), int(found.labels.max())
    if lowest > 0 and not settings.configured_classes:
        warnings.append(
            f"the labels of {name} go from {lowest} to {highest}, and models get an output for "
            f"each class from 0 to {highest}: number the classes from 0"
        )
    if found.clients is not None and settings.partition != BY_COLUMN:
        warnings.append(
            f"{name} returns the client of each sample, which partition = {settings.partition} "
            f"does not read: set partition to {BY_COLUMN}"
        )
    if is_function(name) and _has_channels_last(found.images):
        warnings.append(
            f"the samples {tuple(found.images.shape)} of {name} look like images from 0 to 255 "
            "with channels last, and are read as numbers: return uint8 images (n, channels, "
            "height, width), which are scaled to -1 to 1"
        )
    if is_function(name) and not _is_repeatable(name):
        warnings.append(
            f"{name} returns other data on a second call, and each process calls it: return the "
            "same data in the same order, with a fixed seed"
        )
    return warnings


def _has_channels_last(samples: Tensor) -> bool:
    """Return whether samples look like unscaled images (n, height, width, channels)."""
    if samples.dim() != 4 or samples.shape[1] in CHANNELS or samples.shape[3] not in CHANNELS:
        return False
    in_range = samples.min() >= 0 and 1 < samples.max() <= 255
    return bool(in_range and (samples == samples.round()).all())


@functools.cache
def _is_repeatable(name: str) -> bool:
    """Return whether a function returns the data again that it returned before, by a digest."""
    if name.startswith(f"{OBJECT}:"):
        return True
    before = load_images(name)
    return (
        call_for_data(name).digest == OwnArrays(before.images, before.labels, before.clients).digest
    )


def warnings_about_copies(samples: Tensor, clients: Sequence[Parts], public: Tensor) -> list[str]:
    """Return how many samples are copies of training samples, one sentence for each place.

    Samples are (n, ...); each client has the positions of its training, validation and test
    samples. Public samples are (pool, ...).
    """
    digests = np.array([digest.hex() for digest in digests_of(samples)])
    counts = [int(np.isin(digests[test], digests[train]).sum()) for train, _, test in clients]
    warnings = []
    if copies := sum(counts):
        tested = sum(len(test) for _, _, test in clients)
        warnings.append(
            f"{copies} of {tested} test samples are copies of training samples of the same client "
            f"({np.count_nonzero(counts)} of {len(clients)} clients), and raise its accuracy: "
            "remove the copies"
        )
    trained = set(digests[np.concatenate([train for train, _, _ in clients])].tolist())
    if copies := sum(digest.hex() in trained for digest in digests_of(public)):
        warnings.append(
            f"{copies} of {len(public)} public samples are copies of private training samples, "
            "which every client then has: remove the copies"
        )
    return warnings


def check_scales(settings: DataSettings) -> None:
    """Compare the scales of private data and of another data set that is public.

    A warning says if custom floats, which keep their scale, meet images, which are scaled to -1..1.
    Raises `DataError` if the statistics of the one kind would scale the other.
    """
    private = _float_range(settings.dataset, settings.data_root, settings.data_format)
    public = _float_range(settings.public_dataset, settings.data_root, settings.public_data_format)
    by_statistics = settings.input_scaling not in (AUTO, SYMMETRIC)
    by_statistics |= settings.input_scaling == AUTO and private is not None
    if by_statistics and (private is None) != (public is None):
        floats, images = settings.dataset, settings.public_dataset
        if private is None:
            floats, images = images, floats
        raise DataError(
            f"input-scaling {settings.input_scaling} scales private and public samples by the "
            f"same statistics, but {floats} has floating-point numbers and {images} has pixels "
            f"from 0 to 255; set input-scaling to {SYMMETRIC}"
        )
    if private and not public:
        _warn_of_scale(settings.dataset, private, settings.public_dataset)
    if public and not private:
        _warn_of_scale(settings.public_dataset, public, settings.dataset)


def _warn_of_scale(name: str, of_floats: tuple[float, float], images: str) -> None:
    low, high = of_floats
    if -1 <= low < 0 < high <= 1:
        return
    log(
        WARNING,
        "the samples of %s keep their scale from %g to %g, and the images of %s are scaled to "
        "-1 to 1: scale the former to -1 to 1 if they are images too",
        *(name, low, high, images),
    )


def _float_range(name: str, data_root: str, data_format: DataFormat) -> tuple[float, float] | None:
    """Return the least and the largest number of floating-point data; None for images."""
    if name in DATASETS:
        return None
    samples = load_images(name, data_root, data_format).images
    return (samples.min().item(), samples.max().item()) if samples.is_floating_point() else None
