"""Accuracy over rounds, against communication cost and by client, and gain over `local`."""

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.figures import (
    accuracies_by_rank,
    accuracy_curve,
    comparison_title,
    gains_by_method,
    gains_with_safeguard,
)
from fedkd_flwr.analysis.line_styles import line_styles
from fedkd_flwr.plots.axes import (
    FIGURE_WIDTH,
    bytes_across,
    in_percent,
    in_points,
    legend_below,
    new_figure,
)

ALONE = "#888888"
"""Color of gains without the safeguard."""


def plot_accuracy_over_rounds(comparison: Comparison) -> Figure:
    """Plot mean accuracy over rounds.

    A band is one standard deviation over seeds on each side. With more methods the bands
    are paler.
    """
    figure, axes = new_figure("Round", "Mean accuracy over clients")
    in_percent(axes.yaxis)
    axes.set_title(comparison_title(comparison), fontsize="medium")
    alpha = min(0.14, 0.9 / len(comparison.groups))
    for label, runs, style in line_styles(comparison):
        curve = accuracy_curve(runs)
        mean, spread = curve["accuracy"], curve["deviation"]
        axes.plot(curve.index, mean, label=label, **style)
        if spread.any():
            axes.fill_between(
                curve.index, mean - spread, mean + spread, color=style["color"], alpha=alpha, lw=0
            )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(figure, axes)
    return figure


def plot_accuracy_against_bytes(comparison: Comparison) -> Figure:
    """Plot mean accuracy against the bytes exchanged so far, averaged over seeds.

    A method that exchanges nothing is a dashed line at its final accuracy.
    """
    figure, axes = new_figure("Bytes exchanged so far, both ways", "Mean accuracy over clients")
    in_percent(axes.yaxis)
    axes.set_title(comparison_title(comparison), fontsize="medium")
    for label, runs, style in line_styles(comparison):
        curve = accuracy_curve(runs)
        sizes, mean = curve["bytes"], curve["accuracy"]
        if sizes.empty or sizes.iloc[-1] > 0:
            axes.plot(sizes, mean, label=label, **style)
        else:
            name = f"{label} (exchanges nothing)"
            axes.axhline(mean.iloc[-1], color=style["color"], ls="--", lw=1.5, label=name)
    if (comparison.results["bytes"] > 0).any():
        bytes_across(axes)
    legend_below(figure, axes)
    return figure


def plot_gain_over_local(comparison: Comparison) -> Figure:
    """Plot each client's gain in accuracy over the reference, one point per client and seed.

    Raises
    ------
    ValueError
        If there is no run of the reference with the seed of another run.
    """
    shown, against = gains_by_method(comparison), comparison.against
    if not shown:
        raise ValueError(f"There is no run of {against} with the same seed to compare with.")
    figure, axes = new_figure(f"Gain in accuracy over {against}, in points", "")
    in_points(axes.xaxis)
    figure.set_size_inches(FIGURE_WIDTH, 1.4 + 0.5 * len(shown))
    for row, (_, style, own) in enumerate(shown):
        gain = own["gain"].to_numpy()
        axes.scatter(gain, row + 0.22 * own["jitter"], s=22, color=style["color"], alpha=0.6, lw=0)
        axes.plot([gain.mean()] * 2, [row - 0.34, row + 0.34], color="black", lw=2)
    shares = comparison.table["beats_local"]
    names = [f"{label}\n{shares[label]:.0%} of clients above {against}" for label, _, _ in shown]
    axes.set_yticks(range(len(shown)), names)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.axvline(0, color="black", lw=1, ls=":")
    title = f"{comparison_title(comparison)}\nOne dot per client and seed; the bar is the mean"
    axes.set_title(title, fontsize="medium")
    return figure


def plot_gain_with_safeguard(comparison: Comparison) -> Figure:
    """Plot each client's gain over its private model, without and with the safeguard.

    Raises
    ------
    ValueError
        If no run has a safeguard.
    """
    shown = gains_with_safeguard(comparison)
    if not shown:
        raise ValueError("No run of the comparison has a safeguard.")
    figure, axes = new_figure("Gain in accuracy over the private model, in points", "")
    in_points(axes.xaxis)
    figure.set_size_inches(1.4 * FIGURE_WIDTH, 1.6 + 0.6 * len(shown))
    for row, (_, style, own) in enumerate(shown):
        for name, place, color in (
            ("method_gain", row - 0.2, ALONE),
            ("safeguarded_gain", row + 0.2, style["color"]),
        ):
            gain = own[name].to_numpy()
            axes.scatter(gain, place + 0.14 * own["jitter"], s=16, color=color, alpha=0.6, lw=0)
            axes.plot([gain.mean()] * 2, [place - 0.18, place + 0.18], color="black", lw=2)
    names = [
        f"{label}\nshown worse: {own['method_harmed'].mean():.0%} alone, "
        f"{own['safeguarded_harmed'].mean():.1%} safeguarded"
        for label, _, own in shown
    ]
    axes.set_yticks(range(len(shown)), names)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.axvline(0, color="black", lw=1, ls=":")
    figure.suptitle(
        f"{comparison_title(comparison)}\nGray: the method alone; color: safeguarded. "
        "One dot per client and seed; the bar is the mean",
        fontsize="medium",
    )
    return figure


def plot_clients_by_rank(comparison: Comparison) -> Figure:
    """Plot the accuracy after the last round over the rank of the client, worst to best.

    Each rank is averaged over seeds. The flatter the line, the more even the accuracy.
    """
    figure, axes = new_figure("Clients, from the worst to the best", "Accuracy, last round")
    for label, _, style in line_styles(comparison):
        by_rank = accuracies_by_rank(comparison, label)
        axes.plot(by_rank.index, by_rank, label=label, **style)
    in_percent(axes.xaxis)
    in_percent(axes.yaxis)
    legend_below(figure, axes)
    return figure
