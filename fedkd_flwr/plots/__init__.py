"""Figures of runs and comparisons, in colors that color-blind readers can distinguish.

Every function returns a matplotlib Figure without a window, so it needs no display.
``figure.savefig(path)`` writes it.
"""

from fedkd_flwr.analysis.figures import follow_clusters
from fedkd_flwr.analysis.samples import label_counts
from fedkd_flwr.plots.accuracy import (
    plot_accuracy_against_bytes,
    plot_accuracy_over_rounds,
    plot_clients_by_rank,
    plot_gain_over_local,
    plot_gain_with_safeguard,
)
from fedkd_flwr.plots.clusters import plot_clusters
from fedkd_flwr.plots.comparison import save_figures
from fedkd_flwr.plots.cost import plot_gain_against_bytes
from fedkd_flwr.plots.cross import plot_cross
from fedkd_flwr.plots.distillation import plot_pairs, plot_surface, plot_teacher_rounds
from fedkd_flwr.plots.genotypes import (
    draw_genotypes,
    genotype_figure,
    plot_genotype,
)
from fedkd_flwr.plots.heat_maps import plot_classes, plot_partition
from fedkd_flwr.plots.knowledge import plot_help, plot_sharing
from fedkd_flwr.plots.new_clients import plot_new_clients
from fedkd_flwr.plots.operations import plot_operations

__all__ = [
    "draw_genotypes",
    "follow_clusters",
    "genotype_figure",
    "label_counts",
    "plot_accuracy_against_bytes",
    "plot_accuracy_over_rounds",
    "plot_classes",
    "plot_clients_by_rank",
    "plot_clusters",
    "plot_cross",
    "plot_gain_against_bytes",
    "plot_gain_over_local",
    "plot_gain_with_safeguard",
    "plot_genotype",
    "plot_help",
    "plot_new_clients",
    "plot_operations",
    "plot_pairs",
    "plot_partition",
    "plot_sharing",
    "plot_surface",
    "plot_teacher_rounds",
    "save_figures",
]
