"""What is checked before a run: what stops it, what was read, and what is suspicious."""

import functools
from collections.abc import Iterator, Sequence
from logging import INFO, WARNING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkd_flwr.custom_objects.importing import OBJECT, is_custom, shown_data
from fedkd_flwr.data.clients import (
    Parts,
    client_indices,
    client_parts,
    images_of,
    labels_of,
    load_private,
    num_private,
    public_images_of,
    public_pool_size,
    public_set,
    scaling_of_plan,
)
from fedkd_flwr.data.custom_data import OwnArrays, call_for_data
from fedkd_flwr.data.public import digests_of, require_pool
from fedkd_flwr.data.registry import (
    BY_COLUMN,
    DATASETS,
    HELD_OUT,
    NO_PUBLIC_SET,
    SYMMETRIC,
    DataError,
    is_function,
)
from fedkd_flwr.data.scaling import Symmetric, scaled_as_public, unscaled
from fedkd_flwr.data.settings import AS_PRIVATE, AUTO, SPLITS_THAT_READ, DataPlan, DataSettings
from fedkd_flwr.data.sources import ImageSet, load_images
from fedkd_flwr.data.splits import read_split
from strategies.core.flower import log

CHANNELS = (1, 3, 4)  # how many channels an image has
LEAST_SIDE = 8  # fewest pixels of a side by which gray images are told from series

SAMPLES_COMPARED = 1000  # samples of each data set whose scales are compared
FAR_APART = 5  # times the spread of samples by which those of another data set may differ

DARK = 64
"""Pixels that are all below are probably on another scale than 0 to 255."""

Line = tuple[int, str]  # a level of the log, and what is said at it


def check_data(plan: DataPlan, public_size: int = 0) -> None:
    """Refuse data that cannot be loaded or split; say what was read, and what is suspicious."""
    read_split(plan.settings.split)
    for level, line in _lines_about(plan, public_size):
        log(level, "%s", line)


def _lines_about(plan: DataPlan, public_size: int) -> Iterator[Line]:
    settings = plan.settings
    is_own = settings.dataset not in DATASETS
    if is_own:
        private = load_private(settings)
        yield from ((WARNING, told) for told in warnings_about_data(settings))
    parts = [client_parts(plan, partition_id) for partition_id in range(plan.num_clients)]
    held = sum(map(len, client_indices(plan)))
    used = sum(len(part) for own in parts for part in own)
    if is_custom(settings.partition) and held < (there := num_private(plan)) / 2:
        yield WARNING, f"partition = {settings.partition} gives clients {held} of {there} samples"
    if used < held / 2:
        yield WARNING, f"client-split = {settings.split} uses {used} of {held} samples"
    if is_own:
        yield from _lines_about_reading(plan, private)
    reads_number = settings.partition in SPLITS_THAT_READ["samples-per-class"]
    if reads_number and (asked := settings.samples_per_class):
        labels = labels_of(settings)
        most = max(int(np.bincount(labels[own]).max()) for own in client_indices(plan))
        if most < asked:
            yield WARNING, f"samples-per-class = {asked}, and there are only {most} for a client"
    if public_size:
        require_pool(public_pool_size(settings), public_size)
        scaled_as_public(settings, public_set(plan)[:1], scaling_of_plan(plan))
        if settings.public_dataset not in (HELD_OUT, NO_PUBLIC_SET):
            yield from _lines_about_public_set(settings)
            yield from ((WARNING, told) for told in warnings_about_scales(plan))
    if is_own:
        samples = private.images
        public = public_set(plan) if public_size else samples[:0]
        for told in warnings_about_copies(samples, parts, public):
            yield WARNING, f"{settings.dataset}: {told}"


def _lines_about_reading(plan: DataPlan, private: ImageSet) -> Iterator[Line]:
    """Say in one line what was read and how it is scaled; warn where numbers should be scaled."""
    name, samples = plan.settings.dataset, private.images
    shape = " x ".join(map(str, samples.shape[1:]))
    said = (
        private.said
        or f"{shown_data(name)}: {len(samples)} samples ({shape}) of {private.classes} classes"
    )
    if not samples.is_floating_point():
        yield INFO, f"Read {said}"
    elif not isinstance(scaling_of_plan(plan), Symmetric):
        yield INFO, f"Read {said}; each column is standardized"
    else:
        yield INFO, f"Read {said}; numbers keep their scale"
        if reason := unscaled(samples):
            yield WARNING, f"{name} keeps its scale, and {reason}: set input-scaling to {AUTO}"


def warnings_about_data(settings: DataSettings) -> list[str]:
    """Return what is suspicious about own private data, one sentence each."""
    name = settings.dataset
    found = images_of(settings)
    warnings = [found.warning] if found.warning else []
    lowest, highest = int(found.labels.min()), int(found.labels.max())
    empty = int((np.bincount(found.labels) == 0).sum())
    if empty and not settings.configured_classes:
        warnings.append(
            f"the labels of {name} go from {lowest} to {highest}, and {empty} of the classes from "
            f"0 to {highest} have no samples: models get an output for each, so number the "
            "classes 0, 1, 2, …"
        )
    if not found.images.is_floating_point() and (largest := int(found.images.max())) < DARK:
        warnings.append(
            f"the pixels of {shown_data(name)} are at most {largest}, and are read as those from 0 "
            "to 255: bring them to that range, or return floating-point numbers"
        )
    if found.owners and is_function(name) and settings.partition != BY_COLUMN:
        warnings.append(
            f"{name} returns the client of each sample, which partition = {settings.partition} "
            f"does not read: set partition to {BY_COLUMN}"
        )
    if _has_channels_last(found.images):
        warnings.append(
            f"the samples {tuple(found.images.shape)} of {name} look like images with channels "
            "last, and are read as numbers: return images (n, channels, height, width), which are "
            "scaled to -1 to 1 if they are uint8"
        )
    if _has_no_channels(found.images):
        warnings.append(
            f"the samples {tuple(found.images.shape)} of {name} look like gray images, and are "
            "read as series: return images (n, 1, height, width)"
        )
    if is_function(name) and not _is_repeatable(name):
        warnings.append(
            f"{name} returns other data on a second call, and each process calls it: return the "
            "same data in the same order, with a fixed seed"
        )
    return warnings


def _has_channels_last(samples: Tensor) -> bool:
    """Return whether samples look like images (n, height, width, channels), square or unscaled."""
    if samples.dim() != 4 or samples.shape[1] in CHANNELS or samples.shape[3] not in CHANNELS:
        return False
    return samples.shape[1] == samples.shape[2] or _are_pixels(samples)


def _has_no_channels(samples: Tensor) -> bool:
    """Return whether samples look like gray images (n, height, width), unscaled."""
    return samples.dim() == 3 and min(samples.shape[1:]) >= LEAST_SIDE and _are_pixels(samples)


def _are_pixels(samples: Tensor) -> bool:
    in_range = samples.min() >= 0 and 1 < samples.max() <= 255
    return bool(in_range and (samples == samples.round()).all())


@functools.cache
def _is_repeatable(name: str) -> bool:
    """Return whether a function returns the data again that it returned before, by a digest."""
    if name.startswith(f"{OBJECT}:"):
        return True
    before = load_images(name)
    clients = before.owners.of_samples if before.owners else None
    return call_for_data(name).digest == OwnArrays(before.images, before.labels, clients).digest


def warnings_about_copies(samples: Tensor, clients: Sequence[Parts], public: Tensor) -> list[str]:
    """Return how many samples are copies of training samples, one sentence for each place."""
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


def _lines_about_public_set(settings: DataSettings) -> Iterator[Line]:
    """Compare the scales of private data and of another data set that is public; say what it is."""
    names = settings.dataset, settings.public_dataset
    reads = images_of, public_images_of
    ranges = [
        None if name in DATASETS else _float_range(read(settings).images)
        for name, read in zip(names, reads, strict=True)
    ]
    if (ranges[0] is None) != (ranges[1] is None):
        floats, images = names if ranges[0] else names[::-1]
        low, high = ranges[0] or ranges[1] or (0, 0)
        is_auto = settings.input_scaling == AUTO
        if settings.input_scaling != SYMMETRIC and not (is_auto and ranges[0] is None):
            raise DataError(
                f"input-scaling {settings.input_scaling} scales private and public samples by the "
                f"same statistics, but {floats} has floating-point numbers and {images} has pixels "
                f"from 0 to 255; set input-scaling to {SYMMETRIC}"
            )
        if not -1 <= low < 0 < high <= 1:
            kept = f"the samples of {floats} keep their scale from {low:g} to {high:g}"
            scaled = f"the images of {images} are scaled to -1 to 1"
            advice = "scale the former to -1 to 1 if they are images too"
            yield WARNING, f"{kept}, and {scaled}: {advice}"
    if settings.public_dataset not in DATASETS:
        found = public_images_of(settings)
        if found.said:
            yield INFO, f"Read public {found.said}"
        if found.warning:
            yield WARNING, found.warning


def warnings_about_scales(plan: DataPlan) -> list[str]:
    """Return how public samples differ from private ones as models see them, if they do by far."""
    settings = plan.settings
    names = settings.dataset, settings.public_dataset
    if settings.public_scaling != AS_PRIVATE or {*names} <= {*DATASETS}:
        return []
    scaling = scaling_of_plan(plan)
    (means, spread), (public_means, public_spread) = (
        _moments(scaling(samples[:: len(samples) // SAMPLES_COMPARED + 1]))
        for samples in (load_private(settings).images, public_set(plan))
    )
    apart = float(np.sqrt(np.mean((public_means - means) ** 2)))
    smallest, largest = sorted((spread, public_spread))
    if apart <= FAR_APART * spread and largest <= FAR_APART * smallest:
        return []
    private, public = map(shown_data, names)
    return [
        f"as models see them, the samples of {public} have a spread of {public_spread:.3g} and lie "
        f"{apart:.3g} away from those of {private}, which have one of {spread:.3g}: bring both to "
        "one scale, in the same units"
    ]


def _moments(samples: Tensor) -> tuple[NDArray[np.float64], float]:
    """Return the mean of each column or channel, (columns,), and the spread around them."""
    columns = samples.movedim(1, -1).reshape(-1, samples.shape[1]).double().numpy()
    means = np.nanmean(columns, axis=0)
    return means, float(np.sqrt(np.nanmean((columns - means) ** 2)))


def _float_range(samples: Tensor) -> tuple[float, float] | None:
    return (samples.min().item(), samples.max().item()) if samples.is_floating_point() else None
