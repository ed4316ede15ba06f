"""The data and columns that a run config names, read without importing or validating it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkd_flwr.data.registry import HELD_OUT, NO_PUBLIC_SET, hub_id_of, path_of
from fedkd_flwr.data.settings import DataSettings
from fedkd_flwr.methods import METHODS
from strategies.core.method_record import Need

DEFAULTS = DataSettings()  # the defaults of the data settings


def data_sets_read(run_config: Mapping[str, Any], data_path: str) -> list[str]:
    """Return the names of the data sets that a node reads in a run, by its flat config.

    `data_path` is the node's own data. If shape, classes and public set are given too, the run's
    ``dataset`` is a mere name. Without another public set than a part of ``dataset``, if the method
    needs none at nodes.
    """
    dataset = str(run_config.get("dataset", DEFAULTS.dataset))
    public = str(run_config.get("public-dataset", DEFAULTS.public_dataset))
    sizes_count = run_config.get("model-assignment") == "by-size"
    is_described = run_config.get("image-shape") and _is_positive(run_config.get("num-classes"))
    is_mere_name = data_path and is_described and public != HELD_OUT and not sizes_count
    names = [] if is_mere_name else [dataset]
    built_in = METHODS.get(str(run_config.get("strategy", "")))
    is_for_server = built_in is not None and Need.PUBLIC_DATA not in built_in.record.needs
    return names if public in (HELD_OUT, NO_PUBLIC_SET) or is_for_server else [*names, public]


def _is_positive(value: object) -> bool:
    """Return whether a value, which may be the text of a number, is above 0."""
    try:
        return float(str(value)) > 0
    except ValueError:
        return False


def place_of(name: str, data_root: str) -> Path | None:
    """Return the path of a data set that a run config places on this machine, if it does."""
    if path := path_of(name):
        return path
    hub_id = hub_id_of(name)
    return Path(data_root).expanduser() / hub_id if hub_id and data_root else None


def overlap(first: Path, second: Path) -> bool:
    """Return whether one of two paths is the other or lies in it, links resolved."""
    first, second = first.resolve(), second.expanduser().resolve()
    return first.is_relative_to(second) or second.is_relative_to(first)
