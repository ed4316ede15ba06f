"""A paper's tables beside our runs: one row for each figure of the paper that we ran.

``PAGE/paper.toml`` says which runs stand beside which column of the paper::

    figure = ["Table 1"]                  # the tables that `paper_figure.py` draws

    [[part]]
    table = "Table 1"
    data = "Fashion-MNIST, Non-IID 1"
    sets = ["kt-pfl/table-1"]
    paper = "kt-pfl-table-1:1"            # a file of paper figures, and its column
    with = { round = 30 }                 # settings that runs must have
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from columns import REFERENCE, Result, results, with_spread
from tables import caption, figure_of, gain_of, markdown, paper_figures

from fedkd_flwr.analysis.significance import effects_of
from fedkd_flwr.config.toml_files import load_toml

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Part:
    """Runs beside one column of a paper's table."""

    table: str
    data: str
    sets: tuple[str, ...]
    paper: str
    conditions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """Runs of one method with one choice of settings, by seed, and the paper's figure."""

    method: str
    own: list[Result]
    paper: float | None

    @property
    def accuracies(self) -> list[float]:
        """Our accuracies in percent, by seed."""
        return [100 * result.accuracy for result in self.own]


def parts(page: str) -> tuple[list[Part], list[str]]:
    """Return the parts of a page, and the tables of its figure."""
    content = load_toml(HERE / page / "paper.toml", "parts of a paper")
    found = [
        Part(
            one["table"],
            one["data"],
            tuple(one["sets"]),
            one["paper"],
            {name: str(value) for name, value in one.get("with", {}).items()},
        )
        for one in content["part"]
    ]
    return found, content["figure"]


def rows(part: Part) -> list[Row]:
    """Return the rows of a part in the paper's order, `local` last if the paper lacks it.

    Other runs without a figure in the paper are left out, and so is `local` where the paper varies
    a setting that it has too: each row then has another `local`.

    Raises
    ------
    ValueError
        If a row has several runs of a seed: ``with`` has to choose between them.
    """
    figures = paper_figures(part.paper)
    varied = _varied(figures)
    papers: dict[str, float | None] = {_label(one, varied): one["accuracy"] for one in figures}
    if all("." in name for name in varied):
        papers.setdefault(f"`{REFERENCE}`", None)
    found: dict[str, list[Result]] = {}
    for name in part.sets:
        for label, own in _by_label(results(name, part.conditions), figures, varied).items():
            shown = label in papers
            if shown and len({result.seed for result in own}) != len(own):
                raise ValueError(f"{name} has several runs of a seed for {label} of {part.data}.")
            # `local` of a second set is that of the first again.
            found.setdefault(label, own)
    return [Row(label, found[label], paper) for label, paper in papers.items() if label in found]


def table(page: str, *names: str) -> str:
    """Return the rows of some of a paper's tables, with our gain over `local` beside them.

    Parameters
    ----------
    page : str
        Folder of the page.
    *names : str
        Tables of the paper.
    """
    chosen = [part for part in parts(page)[0] if part.table in names]
    cells, groups = [], {}
    for part in chosen:
        for row in rows(part):
            cells.append([part.data, row.method, *_numbers(row)])
            groups[part.data, row.method] = row.own
    headings = ["data", "method", "ours (seeds):", "over local, points (95%):", "paper:"]
    text = markdown([*headings, "difference, points:"], cells)
    return f"{text}\n{_sizes(chosen)}\n\n{caption(groups, {}, has_verdicts=False)}\n"


def _numbers(row: Row) -> list[str]:
    """Return the cells of a row: our accuracy, gain, the paper's accuracy, the difference."""
    ours = f"{with_spread(row.accuracies)} ({len(row.own)})"
    gain = ""
    if row.own[0].strategy != REFERENCE:
        (effect,) = effects_of({row.method: [result.gain for result in row.own]}).values()
        gain = gain_of(effect)
    if row.paper is None:
        return [ours, gain, "-", "-"]
    return [ours, gain, f"{row.paper:.2f}", f"{np.mean(row.accuracies) - row.paper:+.1f}"]


# ---- Rows and figures of the paper -------------------------------------------------------


def _by_label(
    found: list[Result], figures: list[dict[str, Any]], varied: set[str]
) -> dict[str, list[Result]]:
    """Return the results that have a figure, by its label, and those of `local`."""
    groups: dict[str, list[Result]] = {}
    for result in found:
        figure = figure_of(result, figures)
        if figure is None and result.strategy == REFERENCE:
            figure = {"strategy": REFERENCE}
        if figure is not None:
            groups.setdefault(_label(figure, varied), []).append(result)
    return groups


def _varied(figures: list[dict[str, Any]]) -> set[str]:
    """Return the settings in which figures of one method differ."""
    return {
        name
        for one in figures
        for other in figures
        if one["strategy"] == other["strategy"]
        for name in one
        if name != "accuracy" and other.get(name) != one[name]
    }


def _label(settings: dict[str, Any], varied: set[str]) -> str:
    chosen = [
        f"`{name.rpartition('.')[2]} = {value}`"
        for name, value in settings.items()
        if name in varied
    ]
    return ", ".join([f"`{settings['strategy']}`", *chosen])


# ---- Sizes -------------------------------------------------------------------------------


def _sizes(chosen: list[Part]) -> str:
    """Return the size of the runs on each data; data of one size together."""
    runs: dict[str, list[Result]] = {}
    for part in chosen:
        runs.setdefault(part.data, []).extend(one for row in rows(part) for one in row.own)
    sizes: dict[str, list[str]] = {}
    for data, own in runs.items():
        sizes.setdefault(_size(own), []).append(data)
    if len(sizes) == 1:
        return f"*{next(iter(sizes)).capitalize()}.*"
    return f"*{'. '.join(f'{_joined(data)}: {size}' for size, data in sizes.items())}.*"


def _joined(names: list[str]) -> str:
    return "; ".join(names)


def _size(own: list[Result]) -> str:
    """Return the number of clients and images, the models, and the length of training."""

    def span(name: str) -> str:
        values = sorted({result.value(name) for result in own})
        if isinstance(values[0], str):
            return " or ".join(f"`{value}`" for value in values)
        return " to ".join(dict.fromkeys(f"{value:,}" for value in (values[0], values[-1])))

    share = span("fraction-train")
    steps = "local-iterations" if own[0].value("local-iterations") else "local-epochs"
    phrases = [
        f"{span('num-clients')} clients",
        f"a share of {share} in a round" if share != "1.0" else "",
        f"{span('max-samples')} images in all" if own[0].value("max-samples") else "",
        span("models"),
        f"{span('round')} rounds of {span(steps)} {steps.replace('-', ' ')}".replace(
            " 1 local epochs", " one local epoch"
        ),
    ]
    return ", ".join(phrase for phrase in phrases if phrase)
