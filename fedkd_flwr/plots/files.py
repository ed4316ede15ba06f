"""Write figures to files."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib.figure import Figure

from fedkd_flwr.config import ConfigError
from fedkd_flwr.files import plain_name, replacing
from fedkd_flwr.runs import RunDirectoryError, absolute

FORMATS = ("png", "svg", "pdf")
"""File formats of figures: ``png`` has pixels, ``svg`` and ``pdf`` are vector graphics."""


def write_figures(
    figures: Iterable[tuple[str, Figure]], folder: str | Path, file_format: str = "png"
) -> list[Path]:
    """Write figures one by one, as the iterable yields them.

    Parameters
    ----------
    figures : iterable of (str, Figure)
        File names without suffix, and figures.
    folder : str or Path
        Gets one file per figure; created if missing.
    file_format : str
        One of `FORMATS`.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    ConfigError
        If the format is unknown.
    RunDirectoryError
        If the folder cannot be created or written.
    """
    if file_format not in FORMATS:
        raise ConfigError(
            f"Unknown figure format {file_format}; choose one of {', '.join(FORMATS)}."
        )
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
