"""Fairness: accuracy of the clients, from the worst to the best."""

import numpy as np
from matplotlib.figure import Figure

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.styles import styled
from fedkd_flwr.plots.style import in_percent, legend_below, new_figure


def plot_clients_by_rank(comparison: Comparison) -> Figure:
    """Plot the accuracy after the last round over the rank of the client, worst to best.

    Each rank is averaged over seeds. The flatter the line, the more even the accuracy.
    """
    figure, axes = new_figure("Clients, from the worst to the best", "Accuracy, last round")
    for label, _, style in styled(comparison):
        own = comparison.clients[comparison.clients["method"] == label]
        by_seed = own["accuracy"].groupby(own["seed"])
        # If some clients were not evaluated, the others still cover the whole width.
        ranks = np.linspace(0, 1, max(by_seed.count(), default=0))
        mean = by_seed.quantile(ranks.tolist()).groupby(level=1).mean()
        axes.plot(mean.index, mean, label=label, **style)
    in_percent(axes.xaxis)
    in_percent(axes.yaxis)
    legend_below(figure, axes)
    return figure
