"""Figures as PNG files."""

from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure

from fedkd_flwr.runs import RunDirectoryError


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
    directory = Path(folder).expanduser().resolve()
    paths = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, figure in figures:
            paths.append(directory / f"{name}.png")
            figure.savefig(paths[-1], dpi=150)
    except OSError as error:
        reason = error.strerror or error
        raise RunDirectoryError(
            f"The figures cannot be written to {directory}: {reason}."
        ) from None
    return paths
