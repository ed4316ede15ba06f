"""Opening the runs of a comparison: directories, folders of them, and damaged ones among them."""

import zipfile
from collections.abc import Iterable
from pathlib import Path

from fedkd_flwr.runs import Run, RunDirectoryError, load_run

SUMMARY_KEYS = (
    "last_round", "validation_round", "numbers_up", "numbers_down", "bytes_up", "bytes_down",
    "seconds",
)  # fmt: skip
"""What a comparison reads from the summary of a run."""

CONFIG_KEYS = ("strategy", "seed", "num-clients", "num-server-rounds")
"""What a comparison reads from the config of a run, whatever has a default."""


def open_runs(runs: Iterable[str | Path | Run]) -> tuple[list[Run], list[str]]:
    """Open runs, and the runs in folders that are none themselves; each run once.

    A damaged run in a folder does not keep the others from being compared.

    Parameters
    ----------
    runs : iterable of path or Run
        Run directories, folders that hold some, or opened runs.

    Returns
    -------
    list of Run
        The runs that can be read.
    list of str
        A sentence for each run that cannot.

    Raises
    ------
    RunDirectoryError
        If a path is no run and holds none, if a run that was named itself is damaged, or if
        none is left.
    """
    opened: dict[Path, Run] = {}
    notes: dict[Path, str] = {}
    for item in runs:
        if isinstance(item, Run):
            opened.setdefault(item.path, _readable(item))
            continue
        folder = Path(item).expanduser()
        inside = sorted(file.parent for file in folder.glob("*/config.json"))
        if (folder / "config.json").exists() or not inside:
            run = _readable(load_run(folder))
            opened.setdefault(run.path, run)
            continue
        for path in inside:
            try:
                run = _readable(load_run(path))
            except RunDirectoryError as error:
                notes[path.resolve()] = f"{path.name} is left out: {error}"
            else:
                opened.setdefault(run.path, run)
    if not opened:
        raise RunDirectoryError(" ".join(["There are no runs to compare.", *notes.values()]))
    return list(opened.values()), list(notes.values())


def _readable(run: Run) -> Run:
    """Return a run all of whose parts a comparison and its figures can read.

    Raises
    ------
    RunDirectoryError
        If a part is damaged.
    """
    try:
        _ = [run.config[key] for key in CONFIG_KEYS], run.clients, run.matrices
        if run.summary is not None:
            _ = [run.summary[key] for key in SUMMARY_KEYS]
            if len(run.rounds) < run.summary["rounds"]:
                raise ValueError("rounds.jsonl lacks rounds")
    except (KeyError, ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise RunDirectoryError(f"{run.path} is damaged ({error}).") from None
    return run
