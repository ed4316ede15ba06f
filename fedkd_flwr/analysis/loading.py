"""Load the runs of a comparison from run directories and folders of run directories."""

from collections.abc import Iterable
from pathlib import Path

from fedkd_flwr.runs import DamagedRunError, Run, RunDirectoryError, absolute, load_run


def by_short_name(folders: Iterable[str | Path]) -> dict[str, Path]:
    """Return folders by their last names, with as many parents as tell them apart.

    Parameters
    ----------
    folders : iterable of path
        Such as ``a/runs`` and ``b/runs``, whose names are these. A folder that is given twice
        counts once.
    """
    paths = list(dict.fromkeys(absolute(folder) for folder in folders))
    parts, named = 0, dict[str, Path]()
    while len(named) < len(paths):
        parts += 1
        named = {str(Path(*path.parts[-parts:])): path for path in paths}
    return named


def load_runs(
    runs: Iterable[str | Path | Run], allow_code: str | Iterable[str] = ()
) -> tuple[list[Run], list[str]]:
    """Load runs, and the runs inside folders that are no run directories; each run once.

    A damaged run inside a folder is skipped, and the others are loaded.

    Parameters
    ----------
    runs : iterable of path or Run
        Run directories, folders of run directories, or loaded runs.
    allow_code : str or iterable of str
        Code that their configs may name, see `fedkd_flwr.load_run`.

    Returns
    -------
    list of Run
        The loaded runs.
    list of str
        One sentence for each skipped run.

    Raises
    ------
    RunDirectoryError
        If a path has no runs, if a run directory named by its own path is damaged, or if no run
        is left.
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
            _require_run(folder)
            run = load_run(folder, allow_code)
            opened.setdefault(run.path, run)
            continue
        for path in inside:
            try:
                run = load_run(path, allow_code)
            except DamagedRunError as error:
                notes[path.resolve()] = f"{path.name} is left out: {error}"
            else:
                opened.setdefault(run.path, run)
    if not opened:
        raise RunDirectoryError(" ".join(["There are no runs to compare.", *notes.values()]))
    return list(opened.values()), list(notes.values())


def _require_run(path: Path) -> None:
    """Refuse a path that is no folder, and a folder of folders of runs, by what they are."""
    if (path / "config.json").exists():
        return
    if not path.exists():
        raise RunDirectoryError(f"{path} holds no run: there is no such folder.")
    if not path.is_dir():
        raise RunDirectoryError(
            f"{path} holds no run: it is a file. Type the folder of a run, or one that holds runs."
        )
    deeper = min(path.glob("*/*/config.json"), default=None)
    if deeper:
        raise RunDirectoryError(
            f"{path} holds no run, but folders of runs. Type one of these, such as "
            f"{deeper.parent.parent}; they may be on different data."
        )
