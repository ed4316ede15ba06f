"""Figures as PNG files."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib.figure import Figure

from fedkd_flwr.files import plain_name
from fedkd_flwr.runs import RunDirectoryError, absolute


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
    paths = []
    with _written_to(directory):
        directory.mkdir(parents=True, exist_ok=True)
    for name, figure in figures:
        paths.append(directory / f"{plain_name(name)}.png")
        with _written_to(directory):
            figure.savefig(paths[-1], dpi=150)
    return paths


@contextmanager
def _written_to(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise RunDirectoryError(
            f"The figures cannot be written to {directory}: {reason}."
        ) from None
