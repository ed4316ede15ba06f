"""What one client holds: its samples, split into train, validation and test.

Everything follows from a `DataPlan` and a partition-id, so that a server, a simulation and a
node of a federation derive the same data without exchanging any.
"""

import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkd_flwr.custom_objects.importing import is_custom
from fedkd_flwr.data.content_split import UNGROUPED, Grouping, parts_by_content
from fedkd_flwr.data.custom_data import call_for_partition, content_digest
from fedkd_flwr.data.natural_split import (
    names_of_clients,
    owners_of,
    split_naturally,
    test_positions,
)
from fedkd_flwr.data.partitioners import partition_indices
from fedkd_flwr.data.public import in_private_shape, number_in_common, public_subset, split_public
from fedkd_flwr.data.registry import (
    BY_COLUMN,
    BY_FILE,
    DATASETS,
    HELD_OUT,
    NO_PUBLIC_SET,
    SYMMETRIC,
    DataError,
    Shape,
    reads_data,
)
from fedkd_flwr.data.scaling import (
    Scaling,
    Symmetric,
    scaled_as_public,
    scaling_of,
    standardized_by_column,
    statistics_in,
)
from fedkd_flwr.data.settings import AUTO, DataPlan, DataSettings
from fedkd_flwr.data.sources import ImageSet, OwnData, load_images, load_labels, load_node_data
from fedkd_flwr.data.splits import split_client, stratified_order
from fedkd_flwr.data.storage import share_samples
from strategies.core.metrics import Split
from strategies.core.randomness import random_generator

Indices = NDArray[np.int64]  # positions of samples, sorted
Parts = tuple[Indices, Indices, Indices]  # positions of training, validation and test samples


@dataclass(frozen=True, eq=False)
class ClientData:
    """The private data of one client and the public pool (pool, ...), on the device.

    A part's samples are read and scaled when they are first used, so that a client that is never
    sampled costs its positions alone. `in_public` counts a node's own samples that are in the pool
    too.
    """

    samples: ImageSet
    positions: Parts
    scaling: Scaling
    device: str
    public_images: Tensor
    classes: int
    in_public: int = 0

    @property
    def num_train(self) -> int:
        """D_n, the number of private training samples."""
        return len(self.positions[0])

    # Samples (n, ...) as a model sees them, float32, and labels (n,), int64.
    train_images = cached_property[Tensor](lambda self: self._images(0))
    validation_images = cached_property[Tensor](lambda self: self._images(1))
    test_images = cached_property[Tensor](lambda self: self._images(2))
    train_labels = cached_property[Tensor](lambda self: self._labels(0))
    validation_labels = cached_property[Tensor](lambda self: self._labels(1))
    test_labels = cached_property[Tensor](lambda self: self._labels(2))

    @property
    def evaluated_splits(self) -> dict[Split, tuple[Tensor, Tensor]]:
        """Images and labels that a model is evaluated on, by split; empty splits are left out."""
        splits: dict[Split, tuple[Tensor, Tensor]] = {
            "test": (self.test_images, self.test_labels),
            "validation": (self.validation_images, self.validation_labels),
        }
        return {split: data for split, data in splits.items() if len(data[1])}

    def _images(self, part: int) -> Tensor:
        read = self.samples.images[torch.from_numpy(self.positions[part])]
        return self.scaling(read).to(self.device)

    def _labels(self, part: int) -> Tensor:
        return self.samples.labels[torch.from_numpy(self.positions[part])].to(self.device)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of training, validation and test samples."""
        train, validation, test = map(len, self.positions)
        return train, validation, test

    @property
    def nbytes(self) -> int:
        """Bytes of all images as float32, once they are read."""
        return 4 * math.prod(self.shape) * sum(self.sizes)

    @property
    def shape(self) -> Shape:
        """Of a sample: channels, height and width of an image."""
        return tuple(self.samples.images.shape[1:])

    def described(self) -> str:
        """Return how many samples each part has, and how a node's own images were read."""
        train, validation, test = self.sizes
        told = f"{train} samples to train, {validation} to validate, {test} to test"
        read = self.samples.said if isinstance(self.samples, OwnData) else ""
        return f"{told} ({read})" if read else told

    @property
    def class_counts(self) -> Tensor:
        """Training samples of each class, shape (K,), int64."""
        return torch.bincount(self.train_labels, minlength=self.classes)


BYTES_KEPT = 2**30
"""Bytes of clients' samples that a process keeps as tensors; those of others are built again."""

PLANS_KEPT = 2  # data plans whose tensors a process keeps; more would fill the device in a sweep


def labels_of(settings: DataSettings) -> NDArray[np.int64]:
    """Return the classes of the private data set, without decoding an image."""
    return load_labels(settings.dataset, settings.data_root, settings.data_format)


def images_of(settings: DataSettings) -> ImageSet:
    """Return the whole private data set, decoded."""
    return load_images(settings.dataset, settings.data_root, settings.data_format)


def public_images_of(settings: DataSettings) -> ImageSet:
    """Return another data set that is public, decoded."""
    return load_images(settings.public_dataset, settings.data_root, settings.public_data_format)


@reads_data(PLANS_KEPT)
def _split_pool(plan: DataPlan) -> tuple[Indices, Indices]:
    settings = plan.settings
    labels = labels_of(settings)
    pool = np.arange(len(labels))
    if 0 < settings.max_samples < len(labels):
        generator = random_generator(plan.seed, "max-samples")
        pool = np.sort(stratified_order(labels, generator)[: settings.max_samples])
    trainable = np.setdiff1d(pool, test_positions(settings))
    _, held_out = split_public(len(trainable), settings.num_held_out, plan.seed)
    public = trainable[held_out]
    return np.setdiff1d(pool, public), public


def num_private(plan: DataPlan) -> int:
    """Return how many samples there are for the clients, without those that are held out."""
    return len(_split_pool(plan)[0])


@reads_data(PLANS_KEPT)
def client_indices(plan: DataPlan) -> list[Indices]:
    """Return the sorted positions of each client's samples, disjoint and not held out."""
    settings = plan.settings
    private, _ = _split_pool(plan)
    if len(private) < plan.num_clients:
        # Some partitions would search for minutes before they found out.
        raise DataError(
            f"{len(private)} samples are too few for {plan.num_clients} clients; set fewer "
            "num-clients"
        )
    labels = labels_of(settings)[private]
    if settings.partition in (BY_COLUMN, BY_FILE):
        shares = split_naturally(settings, private, plan.num_clients, plan.seed)
    elif is_custom(settings.partition):
        shares = call_for_partition(
            settings.partition, labels, plan.num_clients, plan.seed, private
        )
    else:
        shares = partition_indices(labels, settings, plan.num_clients, plan.seed)
    return [private[share] for share in shares]


def client_parts(plan: DataPlan, partition_id: int) -> Parts:
    """Return the positions of a client's train, validation and test samples in the data set."""
    known = _loaded(plan).parts
    if partition_id not in known:
        settings, own = plan.settings, client_indices(plan)[partition_id]
        labels = labels_of(settings)[own]
        named = test_positions(settings)
        is_test = np.isin(own, named) if len(named) else None
        parts = split_client(labels, settings.split, plan.seed, partition_id, is_test)
        train, validation, test = (own[part] for part in parts)
        known[partition_id] = train, validation, test
    return known[partition_id]


@reads_data(2)
def load_private(settings: DataSettings) -> ImageSet:
    """Return the whole private data set, after checking it against the settings."""
    everything = images_of(settings)
    settings.check_custom_data(tuple(everything.images.shape[1:]), everything.classes)
    return everything


def public_pool_size(settings: DataSettings) -> int:
    """Return how many samples the public set has, before an image is decoded."""
    if settings.public_dataset == NO_PUBLIC_SET:
        return 0
    if settings.public_dataset == HELD_OUT:
        return settings.num_held_out
    _require_other_dataset(settings)
    return len(
        load_labels(settings.public_dataset, settings.data_root, settings.public_data_format)
    )


def _require_other_dataset(settings: DataSettings) -> None:
    if share_samples(settings.dataset, settings.public_dataset, settings.data_root):
        raise DataError(
            f"public-dataset {settings.public_dataset!r} is the private data set "
            f"{settings.dataset!r} or overlaps it, and its samples would be public; "
            f"use {HELD_OUT!r}"
        )


@dataclass(eq=False)
class _Loaded:
    """What a process has built for one `DataPlan`, kept and dropped together."""

    plan: DataPlan
    parts: dict[int, Parts] = field(default_factory=dict)
    clients: dict[tuple[int, str, Grouping, str], ClientData] = field(default_factory=dict)
    kept: int = 0

    @cached_property
    def public_images(self) -> Tensor:
        samples, scaling = public_set(self.plan), scaling_of_plan(self.plan)
        return scaled_as_public(self.plan.settings, samples, scaling).to(self.plan.device)


def public_set(plan: DataPlan) -> Tensor:
    """Return the public samples as they are decoded, (pool, ...)."""
    settings, shape = plan.settings, plan.settings.image_shape
    if settings.public_dataset == NO_PUBLIC_SET:
        return torch.empty((0, *shape))
    if settings.public_dataset == HELD_OUT:
        _, public = _split_pool(plan)
        return images_of(settings).images[torch.from_numpy(public)]
    _require_other_dataset(settings)
    return in_private_shape(public_images_of(settings).images, shape, settings.public_dataset)


@reads_data(PLANS_KEPT)
def scaling_of_plan(plan: DataPlan) -> Scaling:
    """Return how samples are scaled, private and public ones and those of all clients alike.

    ``auto`` standardizes by the training samples of all clients, or, where they are on nodes alone,
    by the public set.
    """
    settings = plan.settings
    if settings.input_scaling != AUTO or settings.dataset in DATASETS:
        return scaling_of(settings)
    samples = load_private(settings).images if plan.reads_dataset else public_set(plan)
    if not samples.is_floating_point() or not len(samples):
        return Symmetric()
    if plan.reads_dataset:
        parts = [client_parts(plan, partition_id)[0] for partition_id in range(plan.num_clients)]
        samples = samples[torch.from_numpy(np.concatenate(parts))]
    return standardized_by_column(samples)


def _scaling_of_node(plan: DataPlan, own: Tensor, statistics: str) -> Scaling:
    """Return how a node scales its own samples (n, ...); `statistics` is a file of its operator."""
    has_other = plan.reads_dataset or plan.settings.public_dataset != NO_PUBLIC_SET
    if has_other or plan.settings.input_scaling != AUTO:
        scaling = scaling_of_plan(plan)
        if not own.is_floating_point() and not isinstance(scaling, Symmetric):
            raise DataError("this node has images, and the samples of the run are other numbers")
        return scaling
    if not own.is_floating_point():
        return Symmetric()
    if not statistics:
        raise DataError(
            "this node's table cannot be standardized without a public set: set input-statistics "
            "in the node config to a JSON file with the lists mean and deviation, the same at all "
            f"nodes, or scale the tables and set input-scaling to {SYMMETRIC}"
        )
    return statistics_in(statistics, own.shape[1])


@reads_data(PLANS_KEPT)
def hash_of_public_pool(plan: DataPlan) -> str:
    """Return the hash of the whole public pool, by which machines compare their pools."""
    pool = public_pool(plan)
    return content_digest(pool) if len(pool) else ""


@reads_data(PLANS_KEPT)
def _loaded(plan: DataPlan) -> _Loaded:
    return _Loaded(plan)


def public_pool(plan: DataPlan) -> Tensor:
    """Return the public pool, (pool, ...) float32; all clients share one tensor."""
    return _loaded(plan).public_images


@reads_data(2)
def public_samples(plan: DataPlan, size: int, server_round: int) -> Tensor:
    """Return the public subset of a round, (P, ...) float32; all clients share one tensor."""
    pool = public_pool(plan)
    subset = public_subset(len(pool), size, plan.seed, server_round)
    return pool[torch.from_numpy(subset).to(pool.device)]


def load_client(
    plan: DataPlan,
    partition_id: int,
    data_path: str = "",
    grouping: Grouping = UNGROUPED,
    statistics: str = "",
) -> ClientData:
    """Return the data of one client; the second call costs nothing, up to `BYTES_KEPT`.

    `data_path` is a node's own data, which are split by content: samples keep their part while
    others come and go. `statistics` is a file by which they may be scaled, see `statistics_in`.
    """
    loaded, key = _loaded(plan), (partition_id, data_path, grouping, statistics)
    if key in loaded.clients:
        return loaded.clients[key]
    data = _build_client(plan, *key)
    if loaded.kept + data.nbytes <= BYTES_KEPT:
        loaded.clients[key] = data
        loaded.kept += data.nbytes
    return data


def _build_client(
    plan: DataPlan, partition_id: int, data_path: str, grouping: Grouping, statistics: str
) -> ClientData:
    settings = plan.settings
    if not 0 <= partition_id < plan.num_clients:
        raise DataError(f"there is no client {partition_id} among {plan.num_clients}")
    # Checked before anything is read: statistics would be those of the data set that a run names.
    if data_path and settings.input_scaling not in (AUTO, SYMMETRIC):
        raise DataError(
            "a node with its own data does not know the statistics of the pooled data that "
            f"input-scaling {settings.input_scaling} needs; set input-scaling to {AUTO}"
        )
    public = public_pool(plan)
    device, classes = plan.device, settings.num_classes
    if not data_path:
        everything, parts = load_private(settings), client_parts(plan, partition_id)
        positions = _with_evaluated_split(parts, settings)
        scaling = scaling_of_plan(plan)
        return ClientData(everything, positions, scaling, device, public, classes)
    shape = settings.image_shape
    place = data_path, shape, classes, settings.data_format, grouping
    own = load_node_data(*place)
    kind = "samples" if grouping == UNGROUPED else "groups"
    parts = parts_by_content(own.keys, settings.split, partition_id, own.folders, kind)
    positions = _with_evaluated_split(parts, settings)
    scaling = _scaling_of_node(plan, own.images, statistics)
    compared = own.images
    if own.are_leveled_together and len(public):
        # Decoded with its own levels, a copy would differ from the one in the public set.
        is_held_out = settings.public_dataset == HELD_OUT
        pool = images_of(settings) if is_held_out else public_images_of(settings)
        compared = load_node_data(*place, pool.levels).images
    in_public = number_in_common(public, scaled_as_public(settings, compared, scaling))
    return ClientData(own, positions, scaling, device, public, own.classes, in_public)


def _with_evaluated_split(parts: Parts, settings: DataSettings) -> Parts:
    """Return the parts with the split that results are measured on as the test part."""
    train, validation, test = parts
    return train, validation, validation if settings.evaluated_split == "validation" else test


@dataclass(frozen=True)
class DataRecord:
    """What a run directory records of its data."""

    digests: dict[str, str]
    split: list[dict[str, Any]]

    @classmethod
    def of(cls, plan: DataPlan) -> "DataRecord":
        """Return the record of a run's data."""
        return cls(data_digests(plan), split_record(plan))


@reads_data(PLANS_KEPT)
def data_digests(plan: DataPlan) -> dict[str, str]:
    """Return SHA-256 digests by which another split, or other content of own data, is noticed."""
    settings = plan.settings
    digests = {"split": _digest_of_indices(client_indices(plan))}
    if settings.dataset not in DATASETS:
        private = images_of(settings)
        digests["dataset"] = content_digest(private.images, private.labels)
    if settings.public_dataset not in (*DATASETS, HELD_OUT, NO_PUBLIC_SET):
        public = public_images_of(settings)
        digests["public-dataset"] = content_digest(public.images, public.labels)
    return digests


def split_record(plan: DataPlan) -> list[dict[str, Any]]:
    """Return a line for each client: how many samples it holds, and a digest of which."""
    rows: list[dict[str, Any]] = [
        {"partition_id": n, "samples": len(indices), "sha256": _digest_of_indices([indices])}
        for n, indices in enumerate(client_indices(plan))
    ]
    if plan.settings.partition in (BY_COLUMN, BY_FILE):
        names = owners_of(plan.settings).names
        of_clients = names_of_clients(plan.settings, plan.num_clients, plan.seed)
        for row, own in zip(rows, of_clients, strict=True):
            row["values"] = [names[n] for n in own]
    return rows


def _digest_of_indices(shares: list[NDArray[np.int64]]) -> str:
    digest = hashlib.sha256()
    for share in shares:
        digest.update(len(share).to_bytes(8, "little"))
        digest.update(share.astype("<i8").tobytes())
    return digest.hexdigest()
