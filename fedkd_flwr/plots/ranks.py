"""Mean ranks of methods across comparisons, as a critical-difference diagram."""

from matplotlib.figure import Figure

from fedkd_flwr.analysis.across import Across


def plot_ranks(across: Across) -> Figure:
    """Plot mean ranks; a bar joins methods that the Nemenyi test does not show to differ.

    Raises
    ------
    ValueError
        If there are fewer than three methods.
    """
    if across.pairs.empty:
        raise ValueError("A critical-difference diagram needs at least three methods.")
    import scikit_posthocs  # deferred: takes seconds to load

    figure = Figure(figsize=(9, 1.5 + 0.3 * len(across.table)), layout="constrained")
    axes = figure.subplots()
    scikit_posthocs.critical_difference_diagram(across.table["rank"], across.pairs, ax=axes)
    axes.set_title(f"Mean ranks over {across.units}, 1 is best", fontsize="medium")
    return figure
