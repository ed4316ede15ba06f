"""What one client holds: its samples, split into train, validation and test.

Everything follows from `DataSettings` and a partition-id, so that a server, a simulation and a
node of a federation come to the same data without exchanging any.
"""

import functools
import re
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkd_flwr.data.partitioners import partition_indices
from fedkd_flwr.data.public import (
    HELD_OUT,
    NO_PUBLIC_SET,
    public_hash,
    public_images,
    require_pool,
    split_public,
)
from fedkd_flwr.data.sources import (
    DataError,
    ImageSet,
    Shape,
    find_source,
    load_images,
    load_labels,
    load_own_data,
    to_float,
)
from strategies.core.randomness import random_generator

SETTINGS_KEPT = 2
"""Data settings whose tensors a process keeps; more would fill the device in a sweep."""


@dataclass(frozen=True)
class DataSettings:
    """All that the data of a run depends on.

    Attributes
    ----------
    dataset : str
        Name of the private data set.
    data_root : str
        Folder with Parquet data sets by hub id; empty for the Hugging Face hub.
    partition : str
        How the samples are split over clients.
    alpha, classes_per_client, groups, samples_per_class, minimum_size
        As in `fedkd_flwr.data.partitioners.PartitionOptions`.
    client_split : str
        Percentages train/validation/test inside each client; see `split_client`.
    public_dataset : str
        ``held-out``, ``none``, or the name of another data set.
    held_out_size : int
        Samples in the held-out public set.
    num_clients : int
        N.
    seed : int
        Seed of the run.
    max_samples : int
        Use that many samples of the data set, all classes alike; 0 for all.
    device : str
        Where the tensors are to lie.
    """

    dataset: str = "digits"
    data_root: str = ""
    partition: str = "iid"
    alpha: float = 0.5
    classes_per_client: int = 4
    groups: int = 3
    samples_per_class: int = 0
    minimum_size: int = 20
    client_split: str = "75/0/25"
    public_dataset: str = HELD_OUT
    held_out_size: int = 300
    num_clients: int = 8
    seed: int = 0
    max_samples: int = 0
    device: str = "cpu"


@dataclass(frozen=True, eq=False)
class ClientData:
    """The private data of one client and the public pool, on the device.

    Attributes
    ----------
    train_images, validation_images, test_images : Tensor
        Shape (samples, channels, height, width), float32 from -1 to 1.
    train_labels, validation_labels, test_labels : Tensor
        Shape (samples,), int64.
    public_images : Tensor
        Shape (pool, channels, height, width), float32: the public pool, which has no labels.
    classes : int
        K, the number of classes of the data set.
    """

    train_images: Tensor
    train_labels: Tensor
    validation_images: Tensor
    validation_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    public_images: Tensor
    classes: int

    @property
    def shape(self) -> Shape:
        """Channels, height and width of an image."""
        _, channels, height, width = self.train_images.shape
        return channels, height, width

    @property
    def class_counts(self) -> Tensor:
        """Training samples of each class, shape (K,), int64."""
        return torch.bincount(self.train_labels, minlength=self.classes)


def stratified_order(
    labels: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """Order samples at random so that every stretch has about the classes of the whole.

    Each sample stands at the share of its class that lies before it: of four samples at
    1/8, 3/8, 5/8 and 7/8. So a cut anywhere divides every class in the same proportion.

    Parameters
    ----------
    labels : ndarray
        Shape (n,), the classes.
    generator : numpy.random.Generator
        Draws the order inside a class, and between classes where they stand level.

    Returns
    -------
    ndarray
        Shape (n,), the positions 0..n-1 in their new order.
    """
    shuffled = generator.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    _, sizes = np.unique(labels, return_counts=True)
    rank = np.arange(len(labels)) - np.repeat(sizes.cumsum() - sizes, sizes)
    place = (rank + 0.5) / np.repeat(sizes, sizes)
    return by_class[np.lexsort((generator.random(len(labels)), place))]


def read_split(fractions: str) -> list[list[float]]:
    """Read the percentages of a client's split.

    Parameters
    ----------
    fractions : str
        Train, validation and test, as in ``75/0/25``; alternatives as in ``10|30|40/10/50``.

    Returns
    -------
    list of list of float
        The alternatives for each of the three.

    Raises
    ------
    DataError
        If it is written otherwise, exceeds 100 in all, or leaves train or test empty.
    """
    number = r"\d+(\.\d+)?"
    part = rf"{number}(\|{number})*"
    if re.fullmatch(f"{part}/{part}/{part}", fractions):
        parts = [[float(value) for value in text.split("|")] for text in fractions.split("/")]
        if sum(map(max, parts)) <= 100 and min(parts[0]) > 0 and min(parts[2]) > 0:
            return parts
    raise DataError(
        f"client-split {fractions!r} is not of the form train/validation/test in percent, at "
        f"most 100 in all and train and test above 0, such as 75/0/25 or 10|30|40/10/50"
    )


def split_client(
    labels: NDArray[np.int64], fractions: str, seed: int, partition_id: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Split a client's samples into train, validation and test, each with the same classes.

    KT-pFL §5 75/0/25; PersFL §5 60/20/20; PerFed-CKT appendix E 10|30|40/10/50, where a client
    has one of the alternatives at random and leaves the rest unused.

    Parameters
    ----------
    labels : ndarray
        Shape (n,), the classes of the client's samples.
    fractions : str
        Percentages, as `read_split` takes them.
    seed, partition_id : int
        Seed of the run, and the client.

    Returns
    -------
    train, validation, test : ndarray
        Sorted positions in `labels`, with no position in two. A part with a percentage above
        0 has at least one sample.

    Raises
    ------
    DataError
        If the percentages are no such split, or the client has too few samples for it.
    """
    parts = read_split(fractions)
    generator = random_generator(seed, "client-split", partition_id)
    percentages = np.array([generator.choice(alternatives) for alternatives in parts])
    wanted = percentages > 0
    if len(labels) < wanted.sum():
        raise DataError(
            f"client {partition_id} has {len(labels)} samples, too few for the client-split "
            f"{fractions}"
        )
    ends = np.round(percentages.cumsum() / 100 * len(labels)).astype(np.int64)
    sizes = np.maximum(np.diff(ends, prepend=0), wanted)
    while sizes.sum() > len(labels):
        sizes[sizes.argmax()] -= 1
    train, validation, test, _ = np.split(stratified_order(labels, generator), sizes.cumsum())
    return np.sort(train), np.sort(validation), np.sort(test)


@functools.lru_cache(maxsize=SETTINGS_KEPT)
def _split_pool(settings: DataSettings) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the private and the held-out positions in the data set."""
    labels = load_labels(settings.dataset, settings.data_root)
    pool = np.arange(len(labels))
    if 0 < settings.max_samples < len(labels):
        generator = random_generator(settings.seed, "max-samples")
        pool = np.sort(stratified_order(labels, generator)[: settings.max_samples])
    held_out = settings.held_out_size if settings.public_dataset == HELD_OUT else 0
    private, public = split_public(len(pool), held_out, settings.seed)
    return pool[private], pool[public]


@functools.lru_cache(maxsize=SETTINGS_KEPT)
def client_indices(settings: DataSettings) -> list[NDArray[np.int64]]:
    """Return the positions of each client's samples in the data set, from labels alone.

    Parameters
    ----------
    settings : DataSettings
        The data of the run.

    Returns
    -------
    list of ndarray
        N sorted arrays; none holds a sample of another or of the held-out public set.

    Raises
    ------
    DataError
        If the data set is missing or cannot be split as asked.
    """
    private, _ = _split_pool(settings)
    shares = partition_indices(
        load_labels(settings.dataset, settings.data_root)[private],
        settings.partition,
        settings.num_clients,
        settings.seed,
        alpha=settings.alpha,
        classes_per_client=settings.classes_per_client,
        groups=settings.groups,
        samples_per_class=settings.samples_per_class,
        minimum_size=settings.minimum_size,
    )
    return [private[share] for share in shares]


def check_data(settings: DataSettings, public_size: int = 0) -> None:
    """Refuse data that cannot be had or split, before an image is decoded.

    Parameters
    ----------
    settings : DataSettings
        The data of the run.
    public_size : int
        P, public samples used in a round; 0 if the method uses none.

    Raises
    ------
    DataError
        If a data set is missing, the split over or inside clients cannot be met, or the public
        set is smaller than P.
    """
    read_split(settings.client_split)
    labels = load_labels(settings.dataset, settings.data_root)
    for partition_id, indices in enumerate(client_indices(settings)):
        split_client(labels[indices], settings.client_split, settings.seed, partition_id)
    if public_size:
        require_pool(_public_pool_size(settings), public_size)


def _public_pool_size(settings: DataSettings) -> int:
    if settings.public_dataset == NO_PUBLIC_SET:
        return 0
    if settings.public_dataset == HELD_OUT:
        return settings.held_out_size
    _require_other_dataset(settings)
    return len(load_labels(settings.public_dataset, settings.data_root))


def _require_other_dataset(settings: DataSettings) -> None:
    if settings.public_dataset == settings.dataset:
        raise DataError(
            f"public-dataset {settings.dataset!r} is the private data set, whose samples would "
            f"be public; use {HELD_OUT!r}"
        )


@dataclass(eq=False)
class _Loaded:
    """The tensors that a process has built for one `DataSettings`, kept and dropped together."""

    settings: DataSettings
    clients: dict[tuple[int, str], ClientData] = field(default_factory=dict)

    @functools.cached_property
    def public_images(self) -> Tensor:
        settings = self.settings
        shape = find_source(settings.dataset).shape
        if settings.public_dataset == NO_PUBLIC_SET:
            return torch.empty((0, *shape), device=settings.device)
        if settings.public_dataset == HELD_OUT:
            _, public = _split_pool(settings)
            everything = load_images(settings.dataset, settings.data_root)
            images = everything.images[torch.from_numpy(public)]
        else:
            _require_other_dataset(settings)
            images = public_images(settings.public_dataset, shape, settings.data_root)
        return to_float(images.to(settings.device))


@functools.lru_cache(maxsize=SETTINGS_KEPT)
def hash_of_public_pool(settings: DataSettings) -> str:
    """Return the hash of the whole public pool, by which two machines know that theirs is one.

    Empty without a public set.
    """
    pool = public_pool(settings)
    return public_hash(pool) if len(pool) else ""


@functools.lru_cache(maxsize=SETTINGS_KEPT)
def _loaded(settings: DataSettings) -> _Loaded:
    return _Loaded(settings)


def public_pool(settings: DataSettings) -> Tensor:
    """Return the whole public pool, one tensor for all clients of the process.

    Parameters
    ----------
    settings : DataSettings
        The data of the run.

    Returns
    -------
    Tensor
        Shape (pool, channels, height, width), float32 on the device; no rows without a public
        set.

    Raises
    ------
    DataError
        If the public data set is missing or is the private one.
    """
    return _loaded(settings).public_images


def load_client(settings: DataSettings, partition_id: int, data_path: str = "") -> ClientData:
    """Return the data of one client; the second call in a process costs nothing.

    Parameters
    ----------
    settings : DataSettings
        The data of the run.
    partition_id : int
        Which client, 0..N-1.
    data_path : str
        A node's own folder of images or Parquet file, as `load_own_data` takes it, in place of
        a share of the data set.

    Raises
    ------
    DataError
        If the data is missing or cannot be split as asked.
    """
    clients = _loaded(settings).clients
    key = (partition_id, data_path)
    if key not in clients:
        clients[key] = _build_client(settings, partition_id, data_path)
    return clients[key]


def _build_client(settings: DataSettings, partition_id: int, data_path: str) -> ClientData:
    if not 0 <= partition_id < settings.num_clients:
        raise DataError(f"there is no client {partition_id} among {settings.num_clients}")
    if data_path:
        source = find_source(settings.dataset)
        own = load_own_data(data_path, source.shape, source.classes)
    else:
        everything = load_images(settings.dataset, settings.data_root)
        share = torch.from_numpy(client_indices(settings)[partition_id])
        own = ImageSet(everything.images[share], everything.labels[share], everything.classes)
    parts = split_client(own.labels.numpy(), settings.client_split, settings.seed, partition_id)
    train, validation, test = (
        (
            to_float(own.images[positions].to(settings.device)),
            own.labels[positions].to(settings.device),
        )
        for positions in map(torch.from_numpy, parts)
    )
    return ClientData(*train, *validation, *test, public_pool(settings), own.classes)
