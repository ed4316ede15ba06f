"""Methods across published sets, each seed a unit: a table for `check.py`, and figures.

    python docs/results/across.py SET... FOLDER

writes the critical-difference diagram of the sets and, for each set, the gain of its methods
against bytes and steps, as PNG files into FOLDER.
"""

import sys

from columns import results
from runs import compared
from tables import caption

from fedkd_flwr.analysis.across import Across, across_of
from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.plots import plot_gain_against_bytes
from fedkd_flwr.plots.files import write_figures
from fedkd_flwr.plots.ranks import plot_ranks


def table(*names: str) -> str:
    """Return the table of `fedkd compare --across --per-seed` over some sets."""
    groups = {(name,): results(name, {}) for name in names}
    return f"{_across(names).to_markdown()}\n{caption(groups, {}, has_verdicts=False)}\n"


def _across(names: tuple[str, ...]) -> Across:
    return across_of(_compared(names), per_seed=True)


def _compared(names: tuple[str, ...]) -> dict[str, Comparison]:
    return {name.rpartition("/")[2]: compared(name) for name in names}


def main(*names: str, folder: str) -> None:
    """Write the figures."""
    figures = [("ranks", plot_ranks(_across(names)))]
    for name, comparison in _compared(names).items():
        figures.append((f"{name}-cost", plot_gain_against_bytes(comparison)))
    for path in write_figures(figures, folder, "png"):
        print(path)


if __name__ == "__main__":
    main(*sys.argv[1:-1], folder=sys.argv[-1])
