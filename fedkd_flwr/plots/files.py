"""Write figures to files."""

from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure

from fedkd_flwr.analysis.writing import written_to
from fedkd_flwr.config import ConfigError
from fedkd_flwr.files import plain_name, replacing
from fedkd_flwr.runs import absolute

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
    with written_to(directory, "The figures"):
        directory.mkdir(parents=True, exist_ok=True)
    for name, figure in figures:
        paths.append(directory / f"{plain_name(name)}.{file_format}")
        with written_to(directory, "The figures"), replacing(paths[-1]) as temporary:
            figure.savefig(temporary, format=file_format, dpi=150)
    return paths
