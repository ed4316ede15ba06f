"""All figures of a comparison."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.figures import gains_with_cost, sharing_matrices
from fedkd_flwr.config import ConfigError
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.plots.axes import write_figures
from fedkd_flwr.plots.heat_maps import plot_clusters, plot_partition, plot_sharing
from fedkd_flwr.plots.methods import (
    plot_accuracy_over_rounds,
    plot_gain_against_bytes,
    plot_gain_over_local,
    plot_mean_gain,
)
from fedkd_flwr.runs import DamagedRunError

LONGEST_STEM = 120
"""Maximum number of characters of a label in a file name."""


def save_figures(
    comparison: Comparison, folder: str | Path, file_format: str = "png"
) -> list[Path]:
    """Write a comparison's figures into a folder, made if missing, and return the files.

    The format is one of `fedkd_flwr.plots.axes.FORMATS`. Raises `ConfigError` if it is unknown, and
    `RunDirectoryError` if the folder cannot be made or written.
    """
    named = ((file_stem(name), figure) for name, figure in figures_of(comparison))
    return write_figures(named, folder, file_format)


def file_stem(label: str) -> str:
    """Return a label as a file name: ``kt-pfl (rho=0.1)`` → ``kt-pfl-rho-0.1``.

    A label that is too long is shortened and ends in a hash.
    """
    stem = re.sub(r"[^\w.-]+", "-", label).strip("-")
    if len(stem) <= LONGEST_STEM:
        return stem
    return f"{stem[:LONGEST_STEM]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def figures_of(comparison: Comparison) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of a comparison by name, such as ``accuracy over rounds``.

    Matrices, clusters and the partition are drawn for the first seed of each method. The partition
    is skipped if this machine does not have the data.
    """
    # Names of methods, settings and data sets are no formulas.
    with mpl.rc_context({"text.parse_math": False}):
        yield from _of_methods(comparison)
        for label, (run, *_) in comparison.groups.items():
            for matrix in sharing_matrices(run):
                yield f"{label} {matrix}", plot_sharing(run, name=matrix)
            if "clusters" in run.matrices:
                yield f"{label} clusters", plot_clusters(run)
        try:
            yield "partition", plot_partition(next(iter(comparison.groups.values()))[0])
        except (ConfigError, DataError, DamagedRunError):
            return


def _of_methods(comparison: Comparison) -> Iterator[tuple[str, Figure]]:
    if comparison.clients["gain"].notna().any():
        yield f"mean gain over {comparison.against}", plot_mean_gain(comparison)
        yield f"gain over {comparison.against}", plot_gain_over_local(comparison)
    if comparison.clients["accuracy"].notna().any():
        yield "accuracy over rounds", plot_accuracy_over_rounds(comparison)
    if not gains_with_cost(comparison).empty:
        yield "gain against bytes", plot_gain_against_bytes(comparison)
