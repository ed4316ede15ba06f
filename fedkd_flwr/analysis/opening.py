"""Opening the runs of a comparison: directories, folders of them, and damaged ones among them."""

from collections.abc import Iterable
from pathlib import Path

from fedkd_flwr.runs import DamagedRunError, Run, RunDirectoryError, absolute, load_run

SUMMARY_KEYS = (
    "last_round", "validation_round", "numbers_up", "numbers_down", "bytes_up", "bytes_down",
)  # fmt: skip
"""What a comparison reads from a summary besides what every run has to hold."""


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
            opened.setdefault(item.path, item)
            continue
        folder = absolute(item)
        inside = sorted(file.parent for file in folder.glob("*/config.json"))
        if (folder / "config.json").exists() or not inside:
            run = _open(folder)
            opened.setdefault(run.path, run)
            continue
        for path in inside:
            try:
                run = _open(path)
            except DamagedRunError as error:
                notes[path] = f"{path.name} is left out: {error}"
            else:
                opened.setdefault(run.path, run)
    if not opened:
        raise RunDirectoryError(" ".join(["There are no runs to compare.", *notes.values()]))
    return list(opened.values()), list(notes.values())


def _open(path: Path) -> Run:
    """Open a run that has all that a comparison reads."""
    run = load_run(path)
    lacking = [] if run.summary is None else [k for k in SUMMARY_KEYS if k not in run.summary]
    if lacking:
        raise DamagedRunError(
            f"{path / 'summary.json'} is damaged (it lacks {', '.join(lacking)}); remove it, and "
            f"`fedkd run --resume {path}` writes it anew."
        )
    return run
