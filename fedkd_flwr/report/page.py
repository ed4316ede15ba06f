"""Render the report from its templates."""

from dataclasses import dataclass
from importlib.metadata import version

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.graph_objects import Figure
from plotly.offline import get_plotlyjs

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.figures import (
    cluster_members,
    data_title,
    gains_with_safeguard,
    sharing_matrices,
)
from fedkd_flwr.analysis.pairs import notes_on_pairs
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.config import ConfigError
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.report.figures import (
    accuracy_figure,
    clusters_figure,
    gain_figure,
    new_clients_figure,
    safeguard_figure,
    sharing_figure,
    shown_rounds,
    split_figure,
)
from fedkd_flwr.report.tables import (
    client_table,
    method_tables,
    pair_tables,
    run_table,
    settings_of,
)
from fedkd_flwr.runs import DamagedRunError, Run


@dataclass(frozen=True)
class Chart:
    """A figure on the page.

    Attributes
    ----------
    title : str
        What the figure shows; also its label for screen readers.
    figure : Markup
        The figure as JSON, with its frames.
    """

    title: str
    figure: Markup


@dataclass(frozen=True)
class Steps:
    """Figures with a common slider.

    Attributes
    ----------
    title : str
        What the figures show.
    labels : list of str
        One per step: the name of the frame.
    charts : list of Chart
        The figures.
    texts : list of str
        One per step, shown below the slider; empty for none.
    """

    title: str
    labels: list[str]
    charts: list[Chart]
    texts: list[str]


def render_page(comparison: Comparison) -> str:
    """Return a comparison as an HTML page that loads nothing from the network.

    Raises
    ------
    RunDirectoryError
        If a run's matrices are damaged.
    """
    environment = Environment(
        loader=PackageLoader("fedkd_flwr.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    first = next(iter(comparison.groups.values()))[0]
    has_new = "new_accuracy" in comparison.results
    has_gains = bool(comparison.clients["gain"].notna().any())
    split, split_missing = _split(comparison)
    shared_settings, own_settings = settings_of(comparison)
    return environment.get_template("page.html").render(
        title=f"Methods on {data_title(first)}",
        settings=defining_settings(first.config),
        rounds=_rounds(comparison),
        version=version("fedkd-flwr"),
        verdicts=comparison.verdicts,
        notes=comparison.notes,
        methods=method_tables(comparison),
        pairs=pair_tables(comparison),
        notes_on_pairs=notes_on_pairs(comparison.pairs),
        accuracy=_chart("Mean accuracy over rounds", accuracy_figure(comparison)),
        knowledge=[
            steps
            for label, runs in comparison.groups.items()
            if (steps := _knowledge(label, runs[0]))
        ],
        against=comparison.against,
        gains=_chart(f"Gain over {comparison.against}", gain_figure(comparison))
        if has_gains
        else None,
        safeguards=_chart("Gain with a safeguard", safeguard_figure(comparison))
        if gains_with_safeguard(comparison)
        else None,
        clients=client_table(comparison),
        new_clients=_chart("New clients", new_clients_figure(comparison)) if has_new else None,
        split=split,
        split_missing=split_missing,
        shared_settings=shared_settings,
        own_settings=own_settings,
        runs=run_table(comparison),
        plotly=Markup(get_plotlyjs()),
    )


def _rounds(comparison: Comparison) -> str:
    """Return the number of rounds as text; some runs may have stopped early."""
    counts = {len(run.rounds) for runs in comparison.groups.values() for run in runs}
    fewest, most = min(counts), max(counts)
    return f"{most} rounds" if fewest == most else f"{fewest} to {most} rounds"


def _chart(title: str, figure: Figure) -> Chart:
    # A script element ends at the first "</", whatever its content.
    return Chart(title, Markup(figure.to_json().replace("<", "\\u003c")))


def _knowledge(label: str, run: Run) -> Steps | None:
    """Return who learns from whom by round; None for a method without matrices or clusters."""
    names = sharing_matrices(run)
    has_clusters = "clusters" in run.matrices
    if not names and not has_clusters:
        return None
    rounds = shown_rounds(len(run.matrices[names[0] if names else "clusters"]))
    charts = [
        _chart(f"{name.capitalize()}: weight of each giver for each receiver", figure)
        for name in names
        for figure in [sharing_figure(run, name, rounds)]
    ]
    if has_clusters:
        charts.append(_chart("Cluster of each client", clusters_figure(run, rounds)))
    texts = cluster_members(run, rounds) if has_clusters else []
    title = f"{label}, seed {run.config['seed']}"
    return Steps(title, [f"round {number}" for number in rounds], charts, texts)


def _split(comparison: Comparison) -> tuple[Steps | None, str]:
    """Return the partition of each seed, or the reason why it cannot be shown."""
    by_seed = {
        run.config["seed"]: run for runs in comparison.groups.values() for run in reversed(runs)
    }
    runs = {f"seed {seed}": by_seed[seed] for seed in sorted(by_seed)}
    try:
        figure = split_figure(runs)
    except (ConfigError, DataError, DamagedRunError) as error:
        return None, str(error)
    chart = _chart("Samples by client and class", figure)
    return Steps("Partition", list(runs), [chart], []), ""
