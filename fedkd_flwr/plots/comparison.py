"""Write all figures of a comparison."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.evaluations import class_accuracies
from fedkd_flwr.analysis.figures import gains_with_cost, gains_with_safeguard, sharing_matrices
from fedkd_flwr.analysis.persfl import has_pairs
from fedkd_flwr.config import ConfigError
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.plots.accuracy import (
    plot_accuracy_against_bytes,
    plot_accuracy_over_rounds,
    plot_clients_by_rank,
    plot_gain_over_local,
    plot_gain_with_safeguard,
)
from fedkd_flwr.plots.clusters import plot_clusters
from fedkd_flwr.plots.cost import plot_gain_against_bytes
from fedkd_flwr.plots.distillation import plot_pairs, plot_surface, plot_teacher_rounds
from fedkd_flwr.plots.files import write_figures
from fedkd_flwr.plots.heat_maps import plot_classes, plot_partition
from fedkd_flwr.plots.knowledge import plot_help, plot_sharing
from fedkd_flwr.plots.new_clients import plot_new_clients
from fedkd_flwr.runs import DamagedRunError

LONGEST_STEM = 120
"""Maximum number of characters of a label in a file name."""


def save_figures(
    comparison: Comparison, folder: str | Path, file_format: str = "png"
) -> list[Path]:
    """Write the figures of a comparison, as PNG files or in another of `plots.files.FORMATS`.

    Matrices, classes, clusters and the partition are drawn for the first seed of each method.
    PersFL's pairs and teachers are drawn for all seeds together. The partition is skipped if this
    machine does not have the data.

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
    return write_figures(_figures(comparison), folder, file_format)


def file_stem(label: str) -> str:
    """Return a label as a file name: ``kt-pfl (rho=0.1)`` → ``kt-pfl-rho-0.1``.

    A label that is too long is shortened and ends in a hash.
    """
    stem = re.sub(r"[^\w.-]+", "-", label).strip("-")
    if len(stem) <= LONGEST_STEM:
        return stem
    return f"{stem[:LONGEST_STEM]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def _figures(comparison: Comparison) -> Iterator[tuple[str, Figure]]:
    against = comparison.against
    if comparison.clients["accuracy"].notna().any():
        yield "accuracy-over-rounds", plot_accuracy_over_rounds(comparison)
        yield "accuracy-against-bytes", plot_accuracy_against_bytes(comparison)
        yield "clients-by-rank", plot_clients_by_rank(comparison)
    if comparison.clients["gain"].notna().any():
        yield file_stem(f"gain-over-{against}"), plot_gain_over_local(comparison)
    if not gains_with_cost(comparison).empty:
        yield "gain-against-bytes", plot_gain_against_bytes(comparison)
    if gains_with_safeguard(comparison):
        yield "gain-with-safeguard", plot_gain_with_safeguard(comparison)
    if "new_accuracy" in comparison.results:
        yield "new-clients", plot_new_clients(comparison)
    for label, runs in comparison.groups.items():
        run, stem = runs[0], file_stem(label)
        local = comparison.references.of(label, run.config["seed"])
        for matrix in sharing_matrices(run):
            yield f"{stem}-{matrix}", plot_sharing(run, name=matrix)
            if local:
                help_figure = plot_help(run, local, name=matrix, against=against)
                yield f"{stem}-{matrix}-help", help_figure
        if not class_accuracies(run).empty:
            yield f"{stem}-classes", plot_classes(run)
        if "clusters" in run.matrices:
            yield f"{stem}-clusters", plot_clusters(run)
        if all(map(has_pairs, runs)):
            yield f"{stem}-pairs", plot_pairs(runs)
            yield f"{stem}-surface", plot_surface(runs)
            yield f"{stem}-teacher-rounds", plot_teacher_rounds(runs)
    try:
        yield "partition", plot_partition(next(iter(comparison.groups.values()))[0])
    except (ConfigError, DataError, DamagedRunError):
        return
