"""Figures as files."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib.figure import Figure

from fedkd_flwr.config import ConfigError
from fedkd_flwr.files import plain_name, replacing
from fedkd_flwr.runs import RunDirectoryError, absolute

FORMATS = ("png", "svg", "pdf")
"""What a figure can be written as: pixels, or lines for papers."""


def write_figures(
    figures: Iterable[tuple[str, Figure]], folder: str | Path, file_format: str = "png"
) -> list[Path]:
    """Write named figures as they come.

    Parameters
    ----------
    figures : iterable of (str, Figure)
        The figures and the stems of their files.
    folder : str or Path
        Gets one file a figure; made if missing.
    file_format : str
        One of `FORMATS`.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    ConfigError
        If there is no such format.
    RunDirectoryError
        If the folder cannot be made or written.
    """
    if file_format not in FORMATS:
        raise ConfigError(f"The figure format {file_format} is none of {', '.join(FORMATS)}.")
    directory = absolute(folder)
    paths = []
    with _written_to(directory):
        directory.mkdir(parents=True, exist_ok=True)
    for name, figure in figures:
        paths.append(directory / f"{plain_name(name)}.{file_format}")
        with _written_to(directory), replacing(paths[-1]) as temporary:
            figure.savefig(temporary, format=file_format, dpi=150)
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
