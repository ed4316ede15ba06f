"""Figures of runs and comparisons, in colors that color-blind readers can distinguish.

Every function returns a matplotlib Figure without a window, so it needs no display.
``figure.savefig(path)`` writes it.
"""

from fedkd_flwr.analysis.client_models import label_counts
from fedkd_flwr.plots.genotypes import draw_genotypes, genotype_figure, plot_genotype
from fedkd_flwr.plots.heat_maps import plot_clusters, plot_cross, plot_partition, plot_sharing
from fedkd_flwr.plots.methods import (
    plot_accuracy_over_rounds,
    plot_gain_against_bytes,
    plot_gain_over_local,
    plot_mean_gain,
    plot_run,
    save_figures,
)

__all__ = [
    "draw_genotypes",
    "genotype_figure",
    "label_counts",
    "plot_accuracy_over_rounds",
    "plot_clusters",
    "plot_cross",
    "plot_gain_against_bytes",
    "plot_gain_over_local",
    "plot_genotype",
    "plot_mean_gain",
    "plot_partition",
    "plot_run",
    "plot_sharing",
    "save_figures",
]
