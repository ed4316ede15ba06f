"""Figures as PNG files."""

from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure

from fedkd_flwr.runs import RunDirectoryError, absolute, require_writable


def write_figures(figures: Iterable[tuple[str, Figure]], folder: str | Path) -> list[Path]:
    """Write named figures as they come.

    Parameters
    ----------
    figures : iterable of (str, Figure)
        The figures and the stems of their files.
    folder : str or Path
        Gets one PNG file a figure; made if missing.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    RunDirectoryError
        If the folder cannot be made or written.
    """
    directory = absolute(folder)
    require_writable(directory, "folder of figures")
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures:
        paths.append(directory / f"{name}.png")
        try:
            figure.savefig(paths[-1], dpi=150)
        except OSError as error:
            reason = error.strerror or error
            raise RunDirectoryError(f"{paths[-1]} cannot be written: {reason}.") from None
    return paths
