"""The data sets and the partitions by name, without loading the code that reads or splits them."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from fedkd_flwr.custom_objects.importing import is_custom
from strategies.core.settings_groups import NoneOfTheAllowedError

Shape = tuple[int, ...]
"""Of a sample: channels, height and width of an image; own data may have any."""

DATA = ("dataset", "public-dataset")
"""Keys of a run config that name data."""

HELD_OUT = "held-out"
"""Name of the public set that is a part of the private data set."""

NO_PUBLIC_SET = "none"
"""Name of the public set of a method that needs none."""

MOST_CLASSES = 100_000
"""Most classes of a data set; larger labels are identifiers and no classes."""

SYMMETRIC = "symmetric"
"""The ``input-scaling`` of images that needs no statistics of a data set."""


class DataError(ValueError):
    """Data that cannot be loaded or split as asked; the message is one sentence."""


@dataclass(frozen=True)
class Source:
    """Where a data set comes from and what it holds.

    Attributes
    ----------
    hub_id : str
        Name on the Hugging Face hub, and folder in a data root; empty for the bundled digits.
    image_column, label_column : str
        Columns of the images and of their classes.
    shape : tuple of int
        Channels, height and width; empty where the images tell.
    classes : int
        K, the number of classes; 0 where the labels tell.
    """

    hub_id: str
    image_column: str
    label_column: str
    shape: Shape
    classes: int


DATASETS: dict[str, Source] = {
    "digits": Source("", "", "", (1, 28, 28), 10),
    "mnist": Source("ylecun/mnist", "image", "label", (1, 28, 28), 10),
    "fashion-mnist": Source("zalando-datasets/fashion_mnist", "image", "label", (1, 28, 28), 10),
    # The letters, as in the experiments that the authors of KT-pFL released.
    "emnist": Source("tanganke/emnist_letters", "image", "label", (1, 28, 28), 26),
    "cifar10": Source("uoft-cs/cifar10", "img", "label", (3, 32, 32), 10),
    "cifar100": Source("uoft-cs/cifar100", "img", "fine_label", (3, 32, 32), 100),
}
"""The data sets, by the name that a run config gives them."""

PARTITIONS: dict[str, str] = {
    "iid": "fedkd_flwr.data.partitioners:equal_shares",
    "dirichlet": "fedkd_flwr.data.partitioners:dirichlet",
    "dirichlet-clients": "fedkd_flwr.data.partitioners:dirichlet_clients",
    "two-groups": "fedkd_flwr.data.partitioners:two_groups",
    "two-classes": "fedkd_flwr.data.chosen_classes:two_classes",
    "k-classes": "fedkd_flwr.data.chosen_classes:k_classes",
    "k-classes-grouped": "fedkd_flwr.data.chosen_classes:k_classes_grouped",
    "lognormal-two-classes": "fedkd_flwr.data.chosen_classes:lognormal_two_classes",
}
"""The splits over clients, by the name that a run config gives them; see `partition_indices`."""

BY_COLUMN = "by-column"
"""The split by the values of a column, ``client-column``; see `fedkd_flwr.data.natural_split`."""

BY_FILE = "by-file"
"""The split of ``clients:PATH`` and ``pfllib:PATH``, a client for each folder or file; see
`fedkd_flwr.data.natural_split`."""


HUB = "hf:"
"""Prefix of the names of other data sets of the Hugging Face hub."""

FOLDER = "folder:"
"""Prefix of the names of folders on this machine."""

PFLLIB = "pfllib:"
"""Prefix of the names of folders with files of each client, as PFLlib and HtFLlib write them."""

CLIENTS = "clients:"
"""Prefix of the names of folders with a folder or a file of each client."""

OF_CLIENTS = (CLIENTS, PFLLIB)
"""Prefixes of data whose files tell which client has a sample."""

ON_DISK = (FOLDER, *OF_CLIENTS)
"""Prefixes of data on this machine."""

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class DataFormat:
    """What a run config says about data that are not built in.

    Attributes
    ----------
    image_column, label_column : str
        Columns of images and classes where the data has them; empty to find them.
    shape : tuple of int
        Shape that images are brought to; empty for their median height and width.
    classes : int
        K; 0 to find it in the labels.
    labeled : bool
        Whether classes are needed; public data needs none.
    feature_columns : tuple of str
        Columns of numbers that make a sample; empty for all of a table without images.
    client_column : str
        Column that names clients, and so is none of the former.
    """

    image_column: str = ""
    label_column: str = ""
    shape: Shape = ()
    classes: int = 0
    labeled: bool = True
    feature_columns: tuple[str, ...] = ()
    client_column: str = ""


def dataset_name(name: str) -> str:
    """Return a data set's name, with the absolute path of a folder.

    Raises `NoneOfTheAllowedError` if it is neither of `DATASETS`, nor ``hf:ORG/NAME``,
    ``folder:PATH``, ``clients:PATH``, ``pfllib:PATH`` or ``module:object``.
    """
    for prefix in ON_DISK:
        if name.startswith(prefix) and name != prefix:
            # Unlike Path.expanduser, this leaves the name of an unknown account as it is.
            return f"{prefix}{Path(os.path.expanduser(name.removeprefix(prefix))).absolute()}"  # noqa: PTH111
    is_of_hub = name.startswith(HUB) and _HUB_ID.fullmatch(name.removeprefix(HUB))
    if name in DATASETS or is_of_hub or is_function(name):
        return name
    own = "or your own as hf:ORG/NAME, folder:PATH, clients:PATH, pfllib:PATH or module:object"
    raise NoneOfTheAllowedError([*DATASETS, own], name)


def partition_name(name: str) -> str:
    """Return a split's name: of `PARTITIONS`, `BY_COLUMN`, `BY_FILE` or ``module:object``."""
    if name in (*PARTITIONS, BY_COLUMN, BY_FILE) or is_custom(name):
        return name
    allowed = [*PARTITIONS, BY_COLUMN, BY_FILE, "or a custom one as module:object"]
    raise NoneOfTheAllowedError(allowed, name)


def is_function(name: str) -> bool:
    """Return whether a name is that of a function which returns the data."""
    return is_custom(name) and not name.startswith((HUB, *ON_DISK))


def path_of(name: str) -> Path | None:
    """Return the folder that a data set's name contains, if it does."""
    for prefix in ON_DISK:
        if name.startswith(prefix):
            return Path(name.removeprefix(prefix)).expanduser()
    return None


def hub_id_of(name: str) -> str:
    """Return a data set's name on the hub, or folder in a data root; empty if it has none."""
    if name in DATASETS:
        return DATASETS[name].hub_id
    return name.removeprefix(HUB) if name.startswith(HUB) else ""


def find_source(name: str) -> Source:
    """Return the data set of a name.

    Raises `DataError` if no data set has that name.
    """
    if name not in DATASETS:
        raise DataError(f"unknown data set {name!r}; allowed are {', '.join(DATASETS)}")
    return DATASETS[name]


Signature = list[tuple[str, int, int]]
"""Path, size in bytes and time of the last change, in nanoseconds, of each file in a folder."""


class Cached(Protocol):
    """A function with a cache, as `functools.lru_cache` returns it."""

    @property
    def cache_clear(self) -> Callable[[], None]:
        """The function that empties the cache."""


CachedFunction = TypeVar("CachedFunction", bound=Cached)

_READERS: list[Cached] = []
_SIGNATURES: dict[Path, Signature] = {}


def reads_data(function: CachedFunction) -> CachedFunction:
    """Empty the cache of a function when a folder of data has changed; a decorator."""
    _READERS.append(function)
    return function


def forget_changed_folders(*names: str) -> None:
    """Forget all data that were read if one of these data sets has changed since the last call.

    Only data on this machine count, such as ``folder:PATH``.
    """
    folders = [Path(name.partition(":")[2]) for name in names if name.startswith(ON_DISK)]
    now = {folder.resolve(): _signature(folder) for folder in folders}
    if any(_SIGNATURES.get(folder, signature) != signature for folder, signature in now.items()):
        forget_data()
    _SIGNATURES.update(now)


def forget_data() -> None:
    """Forget all data that were read."""
    for function in _READERS:
        function.cache_clear()


def _signature(folder: Path) -> Signature:
    files = ((path, path.stat()) for path in [folder, *sorted(folder.rglob("*"))] if path.is_file())
    return [(str(path), found.st_size, found.st_mtime_ns) for path, found in files]
