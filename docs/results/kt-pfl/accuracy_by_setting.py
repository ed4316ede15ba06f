"""A table and a figure of a sweep: accuracy, and gain over `local`, by the settings that vary.

    python docs/results/kt-pfl/accuracy_by_setting.py RUNS OUTPUT SETTING...

writes OUTPUT.md and OUTPUT.png. A SETTING is a key of the run config; ``round`` stands for every
evaluated round, else the last one counts. A run is held against the run of `local` with the same
seed that has the most settings in common with it.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from fedkd_flwr import Run, load_run
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.plots.looks import COLOURS, FIGURE_WIDTH, new_figure

REFERENCE = "local"


def differences(run: Run, other: Run) -> int:
    """Return how many settings two runs do not share, those of their methods' tables apart."""
    own, others = defining_settings(run.config), defining_settings(other.config)
    names = {name for name in own if "." not in name and name != "strategy"}
    return sum(own[name] != others[name] for name in names)


def course(run: Run) -> pd.Series:
    """Return the mean accuracy in percent by evaluated round."""
    rounds = run.rounds.dropna(subset="accuracy_mean")
    return 100 * rounds.set_index("round")["accuracy_mean"]


def accuracies(runs: list[Run], settings: list[str]) -> pd.DataFrame:
    """Return accuracy and gain over `local` of each run, and of each round if that is asked for.

    Parameters
    ----------
    runs : list of Run
        Finished runs.
    settings : list of str
        What the rows are told apart by, ``round`` among them for all evaluated rounds.

    Returns
    -------
    DataFrame
        Columns ``strategy``, the settings (``-`` where a method does not read one), ``seed``,
        ``accuracy`` and ``gain``.
    """
    rows = []
    for run in runs:
        peers = [other for other in runs if other.config["strategy"] == REFERENCE]
        peers = [other for other in peers if other.config["seed"] == run.config["seed"]]
        reference = course(min(peers, key=lambda other: differences(run, other)))
        own = defining_settings(run.config)
        found = course(run)
        for number in found.index if "round" in settings else found.index[-1:]:
            rows.append(
                {
                    "strategy": run.config["strategy"],
                    **{name: own.get(name, "-") for name in settings},
                    **({"round": number} if "round" in settings else {}),
                    "seed": run.config["seed"],
                    "accuracy": found[number],
                    "gain": found[number] - reference[number],
                }
            )
    return pd.DataFrame(rows).sort_values(["strategy", *settings, "seed"])


def in_markdown(groups: pd.api.typing.DataFrameGroupBy, names: list[str]) -> str:
    """Return the table: a row for each choice of settings, means over seeds, gains by seed."""
    headings = [*names, "accuracy", "gain over `local`, by seed"]
    lines = [headings, ["---"] * len(headings)]
    for choice, group in groups:
        mean, spread = group["accuracy"].mean(), group["accuracy"].std()
        is_reference = group["strategy"].iloc[0] == REFERENCE
        gains = "" if is_reference else ", ".join(f"{gain:+.1f}" for gain in group["gain"])
        lines.append([*map(str, choice), f"{mean:.1f} ± {spread:.1f}", gains])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def draw(groups: pd.api.typing.DataFrameGroupBy, path: Path) -> None:
    """Draw each run as a point and each mean as a bar, a line for each choice of settings."""
    figure, axes = new_figure("Mean accuracy over clients, in percent", "")
    figure.set_size_inches(FIGURE_WIDTH, 1.2 + 0.34 * len(groups))
    strategies = list(dict.fromkeys(choice[0] for choice, _ in groups))
    for row, (choice, group) in enumerate(groups):
        colour = COLOURS[strategies.index(choice[0])]
        axes.scatter(group["accuracy"], np.full(len(group), row), s=26, color=colour, alpha=0.7)
        axes.plot([group["accuracy"].mean()] * 2, [row - 0.3, row + 0.3], color="black", lw=2)
    axes.set_yticks(range(len(groups)), [", ".join(map(str, choice)) for choice, _ in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    figure.savefig(path, dpi=100)


def main(folder: Path, output: Path, settings: list[str]) -> None:
    """Write the table and the figure of a folder of runs."""
    runs = [load_run(path.parent) for path in sorted(folder.glob("*/summary.json"))]
    names = ["strategy", *settings]
    groups = accuracies(runs, settings).groupby(names, sort=False)
    output.with_suffix(".md").write_text(in_markdown(groups, names))
    draw(groups, output.with_suffix(".png"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
