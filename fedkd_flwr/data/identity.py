"""Whether two names of data sets stand for the same samples, without reading any."""

from pathlib import Path

from fedkd_flwr.data.folders import parts_of
from fedkd_flwr.data.registry import DATASETS, FOLDER, hub_id_of

MOVED = {source.hub_id.partition("/")[2]: source.hub_id for source in DATASETS.values()}
"""Sets of the hub by their names before they had an owner, under which it still finds them."""


def share_samples(private: str, public: str, data_root: str = "") -> bool:
    """Return whether two data sets share samples, as far as names and places tell.

    Parameters
    ----------
    private : str
        Name of a data set, as `fedkd_flwr.data.registry.dataset_name` returns it.
    public : str
        Another, of which a folder is taken whole, as it needs no labels.
    data_root : str
        Folder that holds Parquet data sets by hub id; empty for the hub.
    """
    if _plain(private, data_root) == _plain(public, data_root):
        return True
    return any(
        ours.is_relative_to(theirs) or theirs.is_relative_to(ours)
        for ours in _places(private, data_root, labeled=True)
        for theirs in _places(public, data_root, labeled=False)
    )


def _plain(name: str, data_root: str) -> str:
    """Return the canonical name of a data set that has several names."""
    hub_id = hub_id_of(name)
    if not hub_id:
        # A class member can be named `module:object.member` and `module.object:member`.
        return name.replace(":", ".")
    return hub_id if data_root else MOVED.get(hub_id, hub_id).lower()


def _places(name: str, data_root: str, labeled: bool) -> list[Path]:
    """Return the files and folders on this machine that hold a data set."""
    hub_id = hub_id_of(name)
    if name.startswith(FOLDER):
        path = Path(name.removeprefix(FOLDER))
        places = parts_of(path) if labeled else [path]
    else:
        places = [Path(data_root).expanduser() / hub_id] if hub_id and data_root else []
    return [place.resolve() for place in places]
