"""All figures of a comparison."""

from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.results import class_accuracies
from fedkd_flwr.config import ConfigError
from fedkd_flwr.data.catalogue import DataError
from fedkd_flwr.plots.accuracy import (
    plot_accuracy_against_bytes,
    plot_accuracy_over_rounds,
    plot_gain_over_local,
)
from fedkd_flwr.plots.classes import plot_classes
from fedkd_flwr.plots.clusters import plot_clusters
from fedkd_flwr.plots.distillation import distillation_figures, has_pairs
from fedkd_flwr.plots.fairness import plot_clients_by_rank
from fedkd_flwr.plots.files import write_figures
from fedkd_flwr.plots.knowledge import plot_help, plot_sharing, sharing_matrices
from fedkd_flwr.plots.partition import plot_partition


def save_figures(comparison: Comparison, folder: str | Path) -> list[Path]:
    """Write the figures of a comparison as PNG files.

    Matrices, classes, clusters and the split are drawn for the first seed of each method, PersFL's
    pairs and teachers for all seeds at once. The split is left out where this machine does not
    have the data.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    RunDirectoryError
        If the folder cannot be made or written.
    """
    return write_figures(_figures(comparison), folder)


def _figures(comparison: Comparison) -> Iterator[tuple[str, Figure]]:
    yield "accuracy-over-rounds", plot_accuracy_over_rounds(comparison)
    yield "accuracy-against-bytes", plot_accuracy_against_bytes(comparison)
    if comparison.clients["accuracy"].notna().any():
        yield "clients-by-rank", plot_clients_by_rank(comparison)
    if comparison.clients["gain"].notna().any():
        yield "gain-over-local", plot_gain_over_local(comparison)
    for runs in comparison.groups.values():
        run = runs[0]
        local = comparison.reference(run)
        for matrix in sharing_matrices(run):
            yield f"{run.path.name}-{matrix}", plot_sharing(run, name=matrix)
            if local:
                yield f"{run.path.name}-{matrix}-help", plot_help(run, local, name=matrix)
        if not class_accuracies(run).empty:
            yield f"{run.path.name}-classes", plot_classes(run)
        if "clusters" in run.matrices:
            yield f"{run.path.name}-clusters", plot_clusters(run)
        if all(map(has_pairs, runs)):
            yield from distillation_figures(runs)
    try:
        yield "partition", plot_partition(next(iter(comparison.groups.values()))[0])
    except (ConfigError, DataError):
        return
