"""Draw accuracy by the settings that vary, from published runs.

    python docs/results/accuracy_by_setting.py OUTPUT.png FILE.json... SETTING...

A SETTING is a key of the run config; ``round`` stands for every evaluated round, else the last
one counts. The table of the same is ``tables.by_setting``.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from tables import accuracies, parted

from fedkd_flwr.plots.style import COLORS, FIGURE_WIDTH, new_figure


def draw(table: pd.DataFrame, names: list[str], path: Path) -> None:
    """Draw each run as a point and each mean as a bar, one line per combination of settings.

    Parameters
    ----------
    table : DataFrame
        Of `tables.accuracies`.
    names : list of str
        Settings that distinguish the lines, in addition to the method.
    path : Path
        The figure.
    """
    groups = table.groupby(["strategy", *names], sort=True)
    figure, axes = new_figure("Mean accuracy over clients, in percent", "")
    figure.set_size_inches(FIGURE_WIDTH, 1.2 + 0.34 * len(groups))
    strategies = list(dict.fromkeys(choice[0] for choice, _ in groups))
    for row, (choice, group) in enumerate(groups):
        colour = COLORS[strategies.index(choice[0])]
        percent = 100 * group["accuracy"]
        axes.scatter(percent, np.full(len(group), row), s=26, color=colour, alpha=0.7)
        axes.plot([percent.mean()] * 2, [row - 0.3, row + 0.3], color="black", lw=2)
    axes.set_yticks(range(len(groups)), [", ".join(map(str, choice)) for choice, _ in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    figure.savefig(path, dpi=100)


def main(output: Path, words: list[str]) -> None:
    """Draw the runs of the given files."""
    files, names, conditions = parted(
        tuple(Path(word) if word.endswith(".json") else word for word in words)
    )
    table = pd.concat([accuracies(file, names, conditions) for file in files])
    draw(table, names, output)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
