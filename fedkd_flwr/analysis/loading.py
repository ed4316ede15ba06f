"""Opening the runs of a comparison: directories, folders of them, and damaged ones among them."""

from collections.abc import Iterable
from pathlib import Path

from fedkd_flwr.runs import DamagedRunError, Run, RunDirectoryError, absolute, load_run


def load_runs(runs: Iterable[str | Path | Run]) -> tuple[list[Run], list[str]]:
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
            item.check()
            opened.setdefault(item.path, item)
            continue
        folder = absolute(item)
        inside = sorted(file.parent for file in folder.glob("*/config.json"))
        if (folder / "config.json").exists() or not inside:
            run = load_run(folder)
            opened.setdefault(run.path, run)
            continue
        for path in inside:
            try:
                run = load_run(path)
            except DamagedRunError as error:
                notes[path.resolve()] = f"{path.name} is left out: {error}"
            else:
                opened.setdefault(run.path, run)
    if not opened:
        raise RunDirectoryError(" ".join(["There are no runs to compare.", *notes.values()]))
    return list(opened.values()), list(notes.values())
