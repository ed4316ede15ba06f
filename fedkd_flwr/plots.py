"""Figures of runs and comparisons, in colours that the colour-blind can tell apart.

Every function returns a matplotlib Figure that belongs to no window, so that it works without a
display; ``figure.savefig(path)`` writes it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from datasets import ClassLabel, Dataset, Features
from flwr_datasets.partitioner import Partitioner
from flwr_datasets.visualization import plot_label_distributions
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.optimize import linear_sum_assignment

from fedkd_flwr.comparison import (
    REFERENCE,
    Comparison,
    client_accuracies,
    defining_settings,
    in_bytes,
)
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.data.catalogue import DataError
from fedkd_flwr.data.clients import client_indices
from fedkd_flwr.data.sources import load_labels
from fedkd_flwr.genotypes import client_genotypes
from fedkd_flwr.models.darts.drawing import genotype_figure
from fedkd_flwr.models.darts.settings import CELL_INPUTS, NONE, OPERATIONS
from fedkd_flwr.runs import Run
from strategies.core.randomness import random_generator

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, without its yellow, which white paper swallows."""

FAMILIES = (
    ("kt-pfl", "sim-pfl", "topk-pfl"),
    ("perfed-ckt",),
    ("persfl", "persfl-gd"),
    ("fedmd",),
    ("fedavg", "fedavg-ft"),
    ("fedkma", "fednas"),
    ("local",),
)
"""Methods that share a colour, in the order of `COLOURS`; within a family the lines differ.

So a method looks the same in every figure, whatever it is compared with.
"""

MARKERS = "osD^vPX"
LINES = ("-", "--", ":", "-.")
ABSENT = "#DDDDDD"
"""Colour of clients without a cluster."""

FIGURE_WIDTH = 6.4
"""Inches."""


# ---- A comparison --------------------------------------------------------------------


def plot_accuracy_over_rounds(comparison: Comparison) -> Figure:
    """Plot mean accuracy over rounds, a band of one standard deviation over seeds."""
    figure, axes = _figure("Round", "Mean accuracy over clients")
    for label, runs, style in _styled(comparison):
        course = _course(runs, ["round", "accuracy_mean"], "round")
        mean, spread = course["accuracy_mean"]["mean"], course["accuracy_mean"]["std"].fillna(0)
        axes.plot(course.index, mean, label=label, **style)
        if spread.any():
            axes.fill_between(
                course.index, mean - spread, mean + spread, color=style["color"], alpha=0.14, lw=0
            )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, axes)
    return figure


def plot_accuracy_against_bytes(comparison: Comparison) -> Figure:
    """Plot mean accuracy against the bytes exchanged so far, means over seeds.

    A method that exchanges nothing is a dashed line at its last accuracy.
    """
    figure, axes = _figure("Bytes exchanged so far, both ways", "Mean accuracy over clients")
    for label, runs, style in _styled(comparison):
        course = _course(runs, ["round", "bytes", "accuracy_mean"], "round")
        sizes, mean = course["bytes"]["mean"], course["accuracy_mean"]["mean"]
        if sizes.iloc[-1] > 0:
            axes.plot(sizes, mean, label=label, **style)
        else:
            name = f"{label} (exchanges nothing)"
            axes.axhline(mean.iloc[-1], color=style["color"], ls="--", lw=1.5, label=name)
    if (comparison.results["bytes"] > 0).any():
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=8))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, position: in_bytes(size)))
    _legend(figure, axes)
    return figure


def plot_gain_over_local(comparison: Comparison) -> Figure:
    """Plot each client's gain in accuracy over `local`, one point a client and seed.

    Raises
    ------
    ValueError
        If no run has a run of `local` with its seed.
    """
    gains = comparison.clients.dropna(subset="gain")
    if gains.empty:
        raise ValueError(f"No run has a run of {REFERENCE} with its seed to gain over.")
    figure, axes = _figure("Gain of a client in accuracy over local", "")
    shown = [item for item in _styled(comparison) if item[0] in set(gains["method"])]
    figure.set_size_inches(FIGURE_WIDTH, 1.4 + 0.7 * len(shown))
    for row, (label, _, style) in enumerate(shown):
        gain = gains[gains["method"] == label]["gain"].to_numpy()
        shift = random_generator(0, "figure", row).uniform(-0.22, 0.22, len(gain))
        axes.scatter(gain, row + shift, s=22, color=style["color"], alpha=0.6, lw=0)
        axes.plot([gain.mean()] * 2, [row - 0.34, row + 0.34], color="black", lw=2)
    shares = comparison.table["beats_local"]
    names = [f"{label}\n{shares[label]:.0%} of clients gain" for label, _, _ in shown]
    axes.set_yticks(range(len(shown)), names)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.axvline(0, color="black", lw=1, ls=":")
    axes.set_title("One point a client and seed; a bar at the mean", fontsize="medium")
    return figure


# ---- The flow of knowledge -----------------------------------------------------------


def sharing_matrices(run: Run) -> list[str]:
    """Return the names of a run's matrices of shape (rounds, N, N): receiver, giver."""
    clients = run.config["num-clients"]
    square = [name for name, m in run.matrices.items() if m.shape[1:] == (clients, clients)]
    return square if clients > 1 else []


def plot_sharing(
    run: Run,
    server_round: int | None = None,
    name: str | None = None,
    order: Sequence[int] | None = None,
) -> Figure:
    """Draw who learns from whom: a coefficient or sharing matrix as a heat map.

    Parameters
    ----------
    run : Run
        Of a method with such a matrix.
    server_round : int, optional
        The round, the last if left out.
    name : str, optional
        Which matrix, the first if left out.
    order : sequence of int, optional
        Partition-ids from top to bottom; neighbours have similar labels if left out.

    Raises
    ------
    ValueError
        If there is no such matrix or round.
    """
    matrix, title = _sharing(run, server_round, name)
    clients, ordered = _order(run, order)
    figure, axes = _figure("", "", grid=False)
    figure.set_size_inches(FIGURE_WIDTH, 0.9 * FIGURE_WIDTH)
    image = _heat_map(axes, matrix[np.ix_(clients, clients)], clients)
    figure.colorbar(image, ax=axes, label="Weight of the giver")
    axes.set_xlabel(f"Giver{ordered}")
    axes.set_ylabel(f"Receiver{ordered}")
    axes.set_title(title, fontsize="medium")
    return figure


def plot_help(
    run: Run,
    local: Run,
    server_round: int | None = None,
    name: str | None = None,
    order: Sequence[int] | None = None,
) -> Figure:
    """Draw who helps whom beside what each client gains over `local`.

    Parameters
    ----------
    run : Run
        Of a method with a coefficient or sharing matrix.
    local : Run
        The run of `local` on the same split.
    server_round, name, order
        As in `plot_sharing`.

    Raises
    ------
    ValueError
        If there is no such matrix or round.
    """
    matrix, title = _sharing(run, server_round, name)
    clients, ordered = _order(run, order)
    figure = Figure(figsize=(1.35 * FIGURE_WIDTH, 0.85 * FIGURE_WIDTH), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2.2, 1), sharey=True)
    shown = matrix[np.ix_(clients, clients)].astype(float)
    # What a client keeps to itself would drown what others give it.
    np.fill_diagonal(shown, np.nan)
    image = _heat_map(left, shown, clients)
    # Below both parts: a bar beside one of them would push their rows out of line.
    figure.colorbar(
        image, ax=[left, right], location="bottom", shrink=0.6, label="Weight of the giver"
    )
    left.set_xlabel(f"Giver{ordered}")
    left.set_ylabel(f"Receiver{ordered}")
    gain = (client_accuracies(run) - client_accuracies(local)).reindex(clients)
    # The palette's blue and orange part in the eyes of the colour-blind as well.
    colours = [COLOURS[0] if value > 0 else COLOURS[1] for value in gain]
    right.barh(range(len(clients)), gain, color=colours)
    # As wide to the left as to the right, so that a loss is seen to be one.
    widest = 1.1 * float(gain.abs().max())
    if widest > 0:
        right.set_xlim(-widest, widest)
    right.xaxis.set_major_locator(MaxNLocator(4))
    right.axvline(0, color="black", lw=1)
    right.set_xlabel("Gain in accuracy over local")
    right.grid(axis="x", alpha=0.3)
    right.spines[["top", "right"]].set_visible(False)
    right.tick_params(labelleft=False)
    figure.suptitle(f"{title}, without own shares", fontsize="medium")
    return figure


def plot_clusters(run: Run, order: Sequence[int] | None = None) -> Figure:
    """Draw each client's cluster over rounds; grey where a client took no part.

    Parameters
    ----------
    run : Run
        Of a method that clusters clients.
    order : sequence of int, optional
        Partition-ids from top to bottom; neighbours have similar labels if left out.

    Raises
    ------
    ValueError
        If the run has no clusters.
    """
    if "clusters" not in run.matrices:
        raise ValueError(f"{run.path.name} has no clusters.")
    labels = follow_clusters(run.matrices["clusters"])
    clients, ordered = _order(run, order)
    count = max(int(labels.max()) + 1, 1)
    palette = ListedColormap([ABSENT, *(COLOURS[i % len(COLOURS)] for i in range(count))])
    figure, axes = _figure("Round", f"Client{ordered}", grid=False)
    figure.set_size_inches(FIGURE_WIDTH, max(2.4, 1.2 + 0.22 * len(clients)))
    rounds = len(labels)
    image = axes.imshow(
        labels[:, clients].T,
        cmap=palette,
        norm=BoundaryNorm(np.arange(-1.5, count), palette.N),
        aspect="auto",
        interpolation="nearest",
        extent=(0.5, rounds + 0.5, len(clients) - 0.5, -0.5),
    )
    axes.set_yticks(*_client_ticks(clients))
    axes.set_yticks(np.arange(len(clients) + 1) - 0.5, minor=True)
    axes.grid(which="minor", axis="y", color="white", lw=1)
    axes.tick_params(which="minor", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(image, ax=axes, ticks=range(-1, count), label="Cluster")
    bar.ax.minorticks_off()
    bar.ax.set_yticklabels(["absent", *map(str, range(count))])
    axes.set_title(_title(run), fontsize="medium")
    return figure


def plot_genotype(run: Run, partition_id: int) -> Figure:
    """Draw the cells that a client's search has found.

    Parameters
    ----------
    run : Run
        A run of ``fedkma`` or ``fednas`` with ``models = darts``.
    partition_id : int
        The client.

    Raises
    ------
    RunDirectoryError
        If the run has no architecture weights.
    """
    return genotype_figure(client_genotypes(run)[partition_id])


def plot_operations(run: Run, order: Sequence[int] | None = None) -> Figure:
    """Draw which operation each client keeps on each edge of its two cells.

    Parameters
    ----------
    run : Run
        A run of ``fedkma`` or ``fednas`` with ``models = darts``.
    order : sequence of int, optional
        Partition-ids from top to bottom; neighbours have similar labels if left out.

    Raises
    ------
    RunDirectoryError
        If the run has no architecture weights.
    """
    genotypes = client_genotypes(run)
    clients, ordered = _order(run, order)
    operations = [name for name in OPERATIONS if name != NONE]
    edges = [
        (source, node) for node in range(genotypes[0].nodes) for source in range(node + CELL_INPUTS)
    ]
    kept = {
        title: np.full((len(clients), len(edges)), -1)
        for title in ("Normal cell", "Reduction cell")
    }
    for row, client in enumerate(clients):
        cells = (genotypes[client].normal, genotypes[client].reduce)
        for matrix, cell in zip(kept.values(), cells, strict=True):
            for node, choices in enumerate(cell):
                for operation, source in choices:
                    column = edges.index((source, node))
                    matrix[row, column] = operations.index(operation)
    palette = ListedColormap([ABSENT, *COLOURS[: len(operations)]])
    limits = BoundaryNorm(np.arange(-1.5, len(operations)), palette.N)
    height = max(2.8, 1.9 + 0.22 * len(clients))
    figure = Figure(figsize=(FIGURE_WIDTH, height), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    states = ["k-2", "k-1", *map(str, range(genotypes[0].nodes))]
    for axes, (title, matrix) in zip(panels, kept.items(), strict=True):
        axes.imshow(matrix, cmap=palette, norm=limits, aspect="auto", interpolation="nearest")
        names = [f"{states[source]}→{node}" for source, node in edges]
        turned = 90 if len(edges) > 6 else 0
        axes.set_xticks(range(len(edges)), names, rotation=turned, fontsize="small")
        axes.set_xticks(np.arange(len(edges) + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(len(clients) + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", lw=2)
        axes.tick_params(which="minor", length=0)
        axes.set_xlabel("Edge")
        axes.set_title(title, fontsize="medium")
    panels[0].set_yticks(*_client_ticks(clients))
    panels[0].set_ylabel(f"Client{ordered}")
    shown = sorted({int(choice) for matrix in kept.values() for choice in matrix.flat})
    patches = [
        Patch(
            color=palette(limits(choice)),
            label=operations[choice].replace("_", " ") if choice >= 0 else "no edge",
        )
        for choice in shown
    ]
    figure.legend(
        handles=patches, loc="outside lower center", ncols=min(4, len(patches)), frameon=False
    )
    return figure


# ---- Data ----------------------------------------------------------------------------


def label_counts(run: Run) -> pd.DataFrame:
    """Count each client's samples by class, all parts of its split together.

    Returns
    -------
    DataFrame
        One row a client, one column a class of the data set.

    Raises
    ------
    ConfigError, DataError
        If this version of the project cannot rebuild the run's data on this machine.
    """
    plan = read_config(run.config).run.data_plan
    labels = load_labels(plan.settings.dataset, plan.settings.data_root)
    counts = [
        np.bincount(labels[indices], minlength=plan.settings.num_classes)
        for indices in client_indices(plan)
    ]
    return pd.DataFrame(counts).rename_axis(index="partition_id", columns="label")


class _Shares(Partitioner):  # type: ignore[misc]
    """Hands out shares that are known already."""

    def __init__(self, shares: Sequence[NDArray[np.int64]]) -> None:
        super().__init__()
        self._shares = shares

    @property
    def num_partitions(self) -> int:
        return len(self._shares)

    def load_partition(self, partition_id: int) -> Dataset:
        return self.dataset.select(self._shares[partition_id])


def plot_partition(run: Run, **options: Any) -> Figure:
    """Plot who holds how many samples of which class, by flwr-datasets' own plotting.

    Parameters
    ----------
    run : Run
        Whose data is plotted, finished or not.
    **options
        Of `flwr_datasets.visualization.plot_label_distributions`, such as
        ``plot_type="bar"``.

    Raises
    ------
    ConfigError, DataError
        If this version of the project cannot rebuild the run's data on this machine.
    """
    plan = read_config(run.config).run.data_plan
    settings = plan.settings
    partitioner = _Shares(client_indices(plan))
    partitioner.dataset = Dataset.from_dict(
        {"label": load_labels(settings.dataset, settings.data_root)},
        features=Features({"label": ClassLabel(num_classes=settings.num_classes)}),
    )
    figure = Figure(figsize=(1.1 * FIGURE_WIDTH, 0.7 * FIGURE_WIDTH), layout="constrained")
    config = run.config
    defaults = {
        "title": f"{config['dataset']}, {config['partition']}, seed {config['seed']}",
        # Ten and more colours of bars are not told apart by everybody.
        "plot_type": "heatmap",
        "cmap": "cividis",
        "legend": True,
    }
    axes = figure.subplots()
    plot_label_distributions(partitioner, "label", axis=axes, **{**defaults, **options})
    if not axes.get_ylabel():
        axes.set_ylabel("Class")
    axes.tick_params(axis="y", rotation=0)
    return figure


# ---- All of them ---------------------------------------------------------------------


def save_figures(comparison: Comparison, folder: str | Path) -> list[Path]:
    """Write the figures of a comparison as PNG files.

    Matrices, clusters and the split are drawn for the first seed of each method. The split is
    left out where this machine does not have the data.

    Returns
    -------
    list of Path
        The files.
    """
    directory = Path(folder).expanduser().resolve()
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in _figures(comparison):
        paths.append(directory / f"{name}.png")
        figure.savefig(paths[-1], dpi=150)
    return paths


def _figures(comparison: Comparison) -> Iterator[tuple[str, Figure]]:
    yield "accuracy-over-rounds", plot_accuracy_over_rounds(comparison)
    yield "accuracy-against-bytes", plot_accuracy_against_bytes(comparison)
    if comparison.clients["gain"].notna().any():
        yield "gain-over-local", plot_gain_over_local(comparison)
    for runs in comparison.groups.values():
        run = runs[0]
        local = comparison.reference(run)
        for matrix in sharing_matrices(run):
            yield f"{run.path.name}-{matrix}", plot_sharing(run, name=matrix)
            if local:
                yield f"{run.path.name}-{matrix}-help", plot_help(run, local, name=matrix)
        if "clusters" in run.matrices:
            yield f"{run.path.name}-clusters", plot_clusters(run)
    try:
        yield "partition", plot_partition(next(iter(comparison.groups.values()))[0])
    except (ConfigError, DataError):
        return


# ---- Parts of figures ----------------------------------------------------------------


def _figure(xlabel: str, ylabel: str, grid: bool = True) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(FIGURE_WIDTH, 0.7 * FIGURE_WIDTH), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if grid:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _styled(comparison: Comparison) -> list[tuple[str, list[Run], dict[str, Any]]]:
    """Return the groups with a look of their own, the same in every figure."""
    count = len(comparison.groups)
    looks = _looks(comparison)
    return [
        (
            label,
            runs,
            {
                **looks[label],
                # Later lines are thinner, so that equal courses do not hide each other.
                "lw": 3.0 - 1.8 * i / count,
                "ms": 8.0 - 4.0 * i / count,
                # About one marker a tenth of the width.
                "markevery": 0.1,
            },
        )
        for i, (label, runs) in enumerate(comparison.groups.items())
    ]


def _looks(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Return colour, line and marker by label: the method's own where it is not taken yet.

    A method that is there with several settings, or is in no family, gets a look that nobody
    has, of a colour that nobody has while there are some.
    """
    own = {
        strategy: (colour, line)
        for colour, family in enumerate(FAMILIES)
        for line, strategy in enumerate(family)
    }
    taken: dict[str, tuple[int, int]] = {}
    strategies = {label: runs[0].config["strategy"] for label, runs in comparison.groups.items()}
    for label in sorted(strategies):
        look = own.get(strategies[label])
        if look and look not in taken.values():
            taken[label] = look
    all_looks = [(colour, line) for line in range(len(LINES)) for colour in range(len(COLOURS))]
    for label in sorted(strategies.keys() - taken.keys()):
        free = [look for look in all_looks if look not in taken.values()]
        colours = {colour for colour, _ in taken.values()}
        fresh = [look for look in free if look[0] not in colours]
        # Beyond all looks there are, one is used twice.
        taken[label] = (fresh or free or all_looks)[0]
    return {
        label: {
            "color": COLOURS[colour],
            "ls": LINES[line],
            "marker": MARKERS[(colour + 3 * line) % len(MARKERS)],
        }
        for label, (colour, line) in taken.items()
    }


def _legend(figure: Figure, axes: Axes) -> None:
    """Put the legend below the axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    most = max(1, min(4, 70 // (max(map(len, labels)) + 6)))
    rows = -(-len(labels) // most)
    columns = -(-len(labels) // rows)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def _course(runs: Sequence[Run], columns: list[str], index: str) -> pd.DataFrame:
    """Return mean and standard deviation over seeds of columns of the evaluated rounds."""
    frames = []
    for run in runs:
        rounds = run.rounds
        rounds = rounds.assign(bytes=(rounds["bytes_up"] + rounds["bytes_down"]).cumsum())
        frames.append(rounds.loc[rounds["accuracy_mean"].notna(), columns].astype(float))
    return pd.concat(frames).groupby(index).agg(["mean", "std"])


def _sharing(
    run: Run, server_round: int | None, name: str | None
) -> tuple[NDArray[np.float64], str]:
    """Return one round's matrix and a title for it."""
    names = sharing_matrices(run)
    if not names or (name and name not in names):
        what = f"matrix {name}" if name else "matrix of receivers and givers"
        raise ValueError(f"{run.path.name} has no {what}.")
    matrices = run.matrices[name or names[0]]
    server_round = len(matrices) if server_round is None else server_round
    if not 1 <= server_round <= len(matrices):
        raise ValueError(f"Round {server_round} is outside 1..{len(matrices)}.")
    title = f"{_title(run)}: {name or names[0]} after round {server_round}"
    return matrices[server_round - 1].astype(np.float64), title


def _title(run: Run) -> str:
    settings = defining_settings(run.config)
    return f"{settings['strategy']}, {settings['partition']}, seed {settings['seed']}"


def _order(run: Run, order: Sequence[int] | None) -> tuple[NDArray[np.int64], str]:
    """Return the partition-ids in the order to draw them, and what to call it."""
    if order is not None:
        return np.asarray(order), ""
    try:
        counts = label_counts(run).to_numpy()
    except (ConfigError, DataError):
        return np.arange(run.config["num-clients"]), ""
    if len(counts) < 3:
        return np.arange(len(counts)), ""
    shares = counts / counts.sum(axis=1, keepdims=True)
    tree = linkage(shares, "average", optimal_ordering=True)
    return leaves_list(tree).astype(np.int64), ", ordered by labels"


def _heat_map(axes: Axes, matrix: NDArray[np.float64], clients: NDArray[np.int64]) -> AxesImage:
    colours = mpl.colormaps["cividis"].with_extremes(bad="white")
    lowest, highest = float(np.nanmin(matrix)), float(np.nanmax(matrix))
    # Weights that are all equal, as in FedMD, still need a scale with two ends.
    if highest - lowest < 1e-9:
        lowest, highest = 0.0, 2 * highest
    image = axes.imshow(
        matrix, cmap=colours, vmin=lowest, vmax=highest, interpolation="nearest", aspect="auto"
    )
    axes.set_xticks(*_client_ticks(clients))
    axes.set_yticks(*_client_ticks(clients))
    return image


def _client_ticks(clients: NDArray[np.int64]) -> tuple[list[int], list[str]]:
    """Name as many clients as there is room for."""
    step = -(-len(clients) // 25)
    places = list(range(0, len(clients), step))
    return places, [str(clients[place]) for place in places]


def follow_clusters(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Renumber clusters so that one keeps its number over the rounds: k-means has no memory.

    Parameters
    ----------
    labels : ndarray
        Shape (rounds, N), -1 for absent clients.

    Returns
    -------
    ndarray
        Shape (rounds, N); as many clients as possible have the number they had when they were
        last present.
    """
    count = max(int(labels.max()) + 1, 0)
    followed = np.full_like(labels, -1)
    last_known = np.full(labels.shape[1], -1)
    for row, now in zip(followed, labels, strict=True):
        seen_again = (now >= 0) & (last_known >= 0)
        common = np.zeros((count, count))
        np.add.at(common, (now[seen_again], last_known[seen_again]), 1)
        _, number = linear_sum_assignment(common, maximize=True)
        row[now >= 0] = number[now[now >= 0]]
        last_known = np.where(now >= 0, row, last_known)
    return followed
