"""Draw the README's figure: gain over local training, by comparison, method and seed.

    python docs/images/gain_over_local.py [OUTPUT.png]

Every dot is read from the published runs of docs/results/benchmark-tuned.
"""

import hashlib
import sys
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results"
sys.path.insert(0, str(RESULTS))

from columns import REFERENCE, results  # noqa: E402 - found in RESULTS

DATASETS = {"fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
SPLITS = {"k-classes-grouped": "two groups", "dirichlet": "Dirichlet 0.1"}
ARCHITECTURES = {"same": "One architecture", "mixed": "Four architectures"}

LABELS = {
    "kt-pfl": "KT-pFL",
    "sim-pfl": "Sim-pFL",
    "perfed-ckt": "PerFed-CKT",
    "fedmd": "FedMD",
    "persfl": "PersFL",
    "fedkma": "FedKMA",
    "fesem": "FeSEM",
    "hypcluster": "HypCluster",
    "ditto": "Ditto",
    "fedavg-ft": "FedAvg, fine-tuned",
    "fedavg": "FedAvg",
    "fml": "FML",
    "fedkd": "FedKD",
}
"""The methods that are shown, from top to bottom; a panel has those that were run in it."""

ONLY_WITH_SEVERAL_ARCHITECTURES = {"fml", "fedkd"}
"""Shown only where clients' parameters cannot be averaged, to keep the upper row short."""

EXCHANGED = {"soft predictions": "#0072B2", "parameters": "#D55E00"}
SENDS_PREDICTIONS = {"kt-pfl", "sim-pfl", "perfed-ckt", "fedmd"}

LIMITS = (-13.0, 16.0)
"""Points; a gain outside is drawn as a triangle at the edge, with the mean beside it."""


def gains(dataset: str, architectures: str, split: str) -> pd.DataFrame:
    """Return the gain over local training of each shown method and seed, in points.

    Returns
    -------
    DataFrame
        One row per method, in the order of `LABELS`; one column per seed.
    """
    found = results(f"benchmark-tuned/{dataset}-{architectures}-{split}")
    rows = [(one.strategy, one.seed, one.gain) for one in found]
    runs = pd.DataFrame(rows, columns=["strategy", "seed", "gain"])
    table = runs.pivot(index="strategy", columns="seed", values="gain")
    hidden = ONLY_WITH_SEVERAL_ARCHITECTURES if architectures == "same" else set()
    return 100 * table.loc[[name for name in LABELS if name in table.index and name not in hidden]]


def all_gains() -> dict[tuple[str, str, str], pd.DataFrame]:
    """Return `gains` by architectures, data set and split."""
    return {
        (architectures, dataset, split): gains(dataset, architectures, split)
        for architectures in ARCHITECTURES
        for dataset in DATASETS
        for split in SPLITS
    }


def digest(panels: dict[tuple[str, str, str], pd.DataFrame]) -> str:
    """Return a hash of what is drawn; the PNG holds it, so that a test sees an outdated figure."""
    text = "".join(f"{name}\n{table.round(4).to_csv()}" for name, table in panels.items())
    return hashlib.sha256(text.encode()).hexdigest()


def draw(panels: dict[tuple[str, str, str], pd.DataFrame]) -> Figure:
    """Draw a panel for each of the eight comparisons."""
    heights = [len(panels[name, "cifar10", "dirichlet"]) for name in ARCHITECTURES]
    figure = Figure(figsize=(8, 5.6), layout="constrained", facecolor="white")
    grid = figure.subplots(2, 4, sharex=True, sharey="row", height_ratios=heights)
    for axes, (name, table) in zip(grid.flat, panels.items(), strict=True):
        architectures, dataset, split = name
        _draw_panel(axes, table)
        if architectures == "same":
            axes.set_title(f"{DATASETS[dataset]}\n{SPLITS[split]}", fontsize=10)
    for row, title in zip(grid, ARCHITECTURES.values(), strict=True):
        row[0].set_ylabel(title, fontsize=10, fontweight="bold")
    figure.align_ylabels(grid[:, 0])
    figure.supxlabel(f"Gain in mean accuracy over {REFERENCE} training, in points", fontsize=10)
    handles = [
        grid[0, 0].scatter([], [], color=color, s=24, label=f"clients exchange {what}")
        for what, color in EXCHANGED.items()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False, fontsize=10)
    return figure


def _draw_panel(axes: Axes, table: pd.DataFrame) -> None:
    """Draw one comparison: a dot for each seed, a bar at the mean, a line at zero."""
    low, high = LIMITS
    for row, (method, seeds) in enumerate(table.iterrows()):
        kind = "soft predictions" if method in SENDS_PREDICTIONS else "parameters"
        color, mean = EXCHANGED[kind], seeds.mean()
        inside = seeds[seeds.between(low, high)]
        outside = len(seeds) - len(inside)
        axes.scatter(inside, [row] * len(inside), s=20, color=color, alpha=0.75, lw=0)
        axes.scatter([low] * outside, [row] * outside, s=34, color=color, marker="<", clip_on=False)
        if outside:
            label = f"mean {mean:.1f}".replace("-", "\N{MINUS SIGN}")
            axes.text(0.9, row, label, va="center", fontsize=8.5, color=color)
        else:
            axes.plot([mean] * 2, [row - 0.32, row + 0.32], color="black", lw=1.4)
    axes.axvline(0, color="black", lw=0.9)
    axes.set_xlim(low, high)
    axes.set_yticks(range(len(table)), [LABELS[str(name)] for name in table.index])
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.set_xticks([-10, 0, 10], ["\N{MINUS SIGN}10", "0", "+10"])
    axes.set_xticks(range(-10, 16, 5), minor=True)
    axes.grid(which="both", axis="x", color="#dddddd", lw=0.7)
    axes.grid(axis="y", color="#eeeeee", lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, length=0, which="both")
    axes.spines[:].set_visible(False)


def main(output: Path) -> None:
    """Write the figure."""
    panels = all_gains()
    draw(panels).savefig(output, dpi=200, metadata={"Description": digest(panels)})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "gain-over-local.png")
