"""The data sets and the partitions by name, without loading the code that reads or splits them."""

import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from fedkd_flwr.custom_objects.importing import is_custom
from strategies.core.settings_groups import NoneOfTheAllowedError

Shape = tuple[int, ...]
"""Of a sample: channels, height and width of an image; own data may have any."""

DATA = ("dataset", "public-dataset")  # keys of a run config that name data
HELD_OUT = "held-out"  # name of the public set that is a part of the private data set
NO_PUBLIC_SET = "none"  # name of the public set of a method that needs none
MOST_CLASSES = 100_000  # most classes of a data set; larger labels are identifiers and no classes
SYMMETRIC = "symmetric"  # the ``input-scaling`` of images that needs no statistics of a data set


class DataError(ValueError):
    """Data that cannot be loaded or split as asked; the message is one sentence."""


@dataclass(frozen=True)
class Source:
    """Where a data set comes from and what it holds; what is empty or 0 is found in the data."""

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
    "two-classes": "fedkd_flwr.data.partitioners:two_classes",
    "k-classes": "fedkd_flwr.data.partitioners:k_classes",
    "k-classes-grouped": "fedkd_flwr.data.partitioners:k_classes_grouped",
    "lognormal-two-classes": "fedkd_flwr.data.partitioners:lognormal_two_classes",
}
"""The splits over clients, by the name that a run config gives them; see `partition_indices`."""

BY_COLUMN = "by-column"
"""The split by the values of a column, ``client-column``; see `fedkd_flwr.data.natural_split`."""

BY_FILE = "by-file"  # the split of ``clients:PATH``, a client for each folder or file


HUB = "hf:"  # prefix of the names of other data sets of the Hugging Face hub
FOLDER = "folder:"  # prefix of the names of folders on this machine
CLIENTS = "clients:"  # prefix of the names of folders with a folder or a file of each client
ON_DISK = (FOLDER, CLIENTS)  # prefixes of data on this machine

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class DataFormat:
    """What a run config says about own data; what is empty or 0 is found in them."""

    image_column: str = ""
    label_column: str = ""
    shape: Shape = ()
    classes: int = 0
    labeled: bool = True
    feature_columns: tuple[str, ...] = ()
    client_column: str = ""


def dataset_name(name: str) -> str:
    """Return a data set's name, with the absolute path of a folder."""
    for prefix in ON_DISK:
        if name.startswith(prefix) and name != prefix:
            # Unlike Path.expanduser, this leaves the name of an unknown account as it is.
            return f"{prefix}{Path(os.path.expanduser(name.removeprefix(prefix))).absolute()}"  # noqa: PTH111
    is_of_hub = name.startswith(HUB) and _HUB_ID.fullmatch(name.removeprefix(HUB))
    if name in DATASETS or is_of_hub or is_function(name):
        return name
    own = (
        "or your own as hf:ORG/NAME, folder:PATH (a folder, CSV or Parquet file), clients:PATH or "
        "module:object"
    )
    raise NoneOfTheAllowedError([*DATASETS, own], name)


def public_name(name: str) -> str:
    """Return a public data set's name, `HELD_OUT` or `NO_PUBLIC_SET`."""
    return name if name in (HELD_OUT, NO_PUBLIC_SET) else dataset_name(name)


def partition_name(name: str) -> str:
    """Return a split's name: of `PARTITIONS`, `BY_COLUMN`, `BY_FILE` or ``module:object``."""
    if name in (*PARTITIONS, BY_COLUMN, BY_FILE) or is_custom(name):
        return name
    allowed = [*PARTITIONS, BY_COLUMN, BY_FILE, "or a custom one as module:object"]
    raise NoneOfTheAllowedError(allowed, name)


def is_function(name: str) -> bool:
    """Return whether a name is that of a function which returns the data."""
    is_table = name.lower().endswith((".csv", ".parquet"))  # csv:PATH is meant as folder:PATH
    return is_custom(name) and not is_table and not name.startswith((HUB, *ON_DISK))


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


Signature = list[tuple[str, int, int]]
"""Path, size in bytes and time of the last change, in nanoseconds, of each file in a folder."""


Given = ParamSpec("Given")
Result = TypeVar("Result")

_READERS: list[Any] = []
_SIGNATURES: dict[Path, Signature] = {}


def reads_data(
    most: int | None = None,
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Keep what a function returns, at most so often, until a folder of data has changed."""

    def decorated(function: Callable[Given, Result]) -> Callable[Given, Result]:
        kept = functools.lru_cache(most)(function)
        _READERS.append(kept)
        return cast(Callable[Given, Result], kept)

    return decorated


def forget_changed_folders(*names: str) -> None:
    """Forget all data that were read if the folder of one of these data sets has changed."""
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
