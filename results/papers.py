"""A paper's numbers beside our runs.

``papers/PAPER.toml`` lists the columns of its tables. Each has the settings of the runs that it
applies to (``where``), further settings of the paper (``size``), accuracies in percent
(``figures``), and which published runs stand beside it (``beside``, with the settings that these
runs must have)::

    [[columns]]
    table = "Table 2"
    where = { dataset = "fashion-mnist", num-clients = 20 }
    size = { num-server-rounds = 20 }
    figures = [{ strategy = "fedavg", accuracy = 80.69 }]
    beside = [{ data = "20 clients", sets = ["kt-pfl/table-2"], with = { round = 9 } }]
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedkd_flwr.analysis.columns import REFERENCE
from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.analysis.significance import effect_of
from fedkd_flwr.config import ConfigError, default_values, known_names
from fedkd_flwr.config.flat_config import flatten
from fedkd_flwr.config.toml_files import load_toml
from results.published import (
    PublishedRun,
    compared,
    gains,
    in_points,
    makers,
    mean,
    mean_and_spread,
)

PAPERS = Path(__file__).parent / "papers"
ACCURACY = "accuracy"


@dataclass(frozen=True)
class Column:
    """A column of a paper's table; settings have flat names, as in a run's config."""

    table: str
    where: dict[str, Any]
    size: dict[str, Any]
    figures: list[dict[str, Any]]
    beside: list[dict[str, Any]]

    def figure_of(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the figure that has these settings, if it is exactly one."""
        found = [
            figure
            for figure in self.figures
            if all(settings.get(k) == v for k, v in figure.items() if k != ACCURACY)
        ]
        return found[0] if len(found) == 1 else None

    @property
    def varied(self) -> list[str]:
        """The settings in which figures of one method differ."""
        names = dict.fromkeys(name for figure in self.figures for name in figure)
        methods = {figure["strategy"] for figure in self.figures}
        values = {
            (method, name): {f.get(name) for f in self.figures if f["strategy"] == method}
            for method in methods
            for name in names
        }
        return [
            name
            for name in names
            if name != ACCURACY and any(len(values[method, name]) > 1 for method in methods)
        ]


def columns_of(paper: str, folder: Path = PAPERS) -> list[Column]:
    """Return the columns of a paper's tables.

    Raises
    ------
    ConfigError
        If there is no such paper, or a column names an unknown setting.
    """
    columns = [
        Column(
            one["table"],
            flatten(one.get("where", {})),
            flatten(one.get("size", {})),
            [flatten(figure) for figure in one["figures"]],
            [{"with": {}, **part} for part in one.get("beside", [])],
        )
        for one in load_toml(folder / f"{paper}.toml", "paper file")["columns"]
    ]
    known = {ACCURACY, *known_names()}
    for column in columns:
        named = {*column.where, *column.size}.union(*column.figures)
        if unknown := sorted(named - known):
            raise ConfigError(
                f"papers/{paper}.toml names {', '.join(unknown)}, which is not a setting; "
                "`fedkd list settings` shows all."
            )
    return columns


# ---- Published runs beside a paper -----------------------------------------------------------


@dataclass(frozen=True)
class Beside:
    """Published runs of one method, and the paper's accuracy in percent; None if it has none."""

    table: str
    data: str
    method: str
    settings: str
    runs: list[PublishedRun]
    accuracies: list[float]
    gains: list[float]
    theirs: float | None


def beside(paper: str) -> Iterator[Beside]:
    """Yield published runs beside a paper's figures, in its order; `local` last if it lacks it.

    Other runs without a figure are left out, and so is `local` where the paper varies a setting
    that it has too: each row then has another `local`.
    """
    for column in columns_of(paper):
        for part in column.beside:
            yield from _beside_part(column, part)


def _beside_part(column: Column, part: Mapping[str, Any]) -> Iterator[Beside]:
    conditions = flatten(part["with"])
    last = conditions.pop("round", None)
    order = [_named(column, figure) for figure in column.figures]
    if all("." in name for name in column.varied):
        order.append((REFERENCE, ""))
    found: dict[tuple[str, str], Beside] = {}
    for name in part["sets"]:
        own: dict[tuple[str, str], Beside] = {}
        for label, runs in compared(name).groups.items():
            settings = runs[0].settings
            figure = column.figure_of(settings)
            is_local = figure is None and settings["strategy"] == REFERENCE
            if not (figure or is_local) or not _has(settings, conditions):
                continue
            row = _row(column, part["data"], label, runs, figure, last, compared(name))
            key = row.method, row.settings
            if own.setdefault(key, row) is not row and key in order:
                raise ValueError(f"{name} has several runs for {label} of {part['data']}.")
        # `local` of a second set is that of the first again.
        found = {**own, **found}
    yield from (found[key] for key in dict.fromkeys(order) if key in found)


def _has(settings: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    """Return whether settings meet conditions; those that a method does not read do not count."""
    return all(settings.get(name, value) == value for name, value in conditions.items())


def _named(column: Column, settings: Mapping[str, Any]) -> tuple[str, str]:
    """Return the method, and the settings that tell its figures apart."""
    named = [
        f"{name.rpartition('.')[2]}={settings[name]}" for name in column.varied if name in settings
    ]
    return settings["strategy"], ", ".join(named)


def _row(
    column: Column,
    data: str,
    label: str,
    runs: list[PublishedRun],
    figure: dict[str, Any] | None,
    last: int | None,
    comparison: Comparison,
) -> Beside:
    method, settings = _named(column, figure or {"strategy": REFERENCE})
    return Beside(
        column.table,
        data,
        method,
        settings,
        runs,
        [100 * run.accuracy_at(last) for run in runs],
        gains(comparison, label, last),
        figure[ACCURACY] if figure else None,
    )


def paper_rows() -> list[dict[str, Any]]:
    """Return the rows of the table ``papers``."""
    return [
        {
            "paper": file.stem,
            "table": row.table,
            "data": row.data,
            "method": row.method,
            "settings": row.settings,
            "seeds": len(row.runs),
            **mean_and_spread("ours", row.accuracies),
            **in_points("gain", effect_of(row.gains) if row.gains else None),
            "theirs": row.theirs,
            "difference": np.nan
            if row.theirs is None
            else round(mean(row.accuracies) - row.theirs, 4),
            **makers(row.runs),
        }
        for file in sorted(PAPERS.glob("*.toml"))
        for row in beside(file.stem)
    ]


# ---- Own runs beside a paper -----------------------------------------------------------------


def beside_paper(comparison: Comparison, paper: str, table: str) -> str:
    """Return own runs beside a paper's numbers, in Markdown.

    Parameters
    ----------
    comparison : Comparison
        Own runs.
    paper, table : str
        A file of ``papers``, and one of its tables, such as ``Table 2``.

    Raises
    ------
    ConfigError
        If no figure applies to any of the runs.
    """
    columns = [column for column in columns_of(paper) if column.table == table]
    lines, notes = [], dict[str, None]()
    for label, runs in comparison.groups.items():
        settings = {**default_values(), **defining_settings(runs[0].config)}
        for column in columns:
            figure = column.figure_of(settings)
            if figure is None or not column.where.items() <= settings.items():
                continue
            ours, theirs = 100 * comparison.table["accuracy"][label], figure[ACCURACY]
            lines.append(f"| {label} | {ours:.1f} | {theirs:.2f} | {ours - theirs:+.1f} |")
            for name, value in column.size.items():
                if settings[name] != value:
                    note = f"{name} is {settings[name]}, in the paper {value}"
                    notes[f"Not at the paper's size: {note}."] = None
    if not lines:
        raise ConfigError(f"{paper}, {table}, has no number for any of these runs.")
    heading = ["| method | ours | paper | difference, points |", "| --- | ---: | ---: | ---: |"]
    return "\n".join([*heading, *lines, "", *notes])
