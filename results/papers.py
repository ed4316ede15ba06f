"""A paper's numbers beside our runs.

``papers/PAPER.toml`` lists the columns of its tables: the settings of the runs that it applies to
(``where``), further settings of the paper (``size``), accuracies in percent (``figures``), and
which published runs stand beside it (``beside``; ``with`` chooses among them)::

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
    groups_of,
    in_points,
    makers,
    mean,
    mean_and_spread,
)

PAPERS = Path(__file__).parent / "papers"
ACCURACY = "accuracy"
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of a paper's table; settings have flat names, as in a run's config."""

    table: str
    where: Settings
    size: Settings
    figures: list[dict[str, Any]]
    beside: list[Settings]

    def figure_of(self, settings: Settings) -> dict[str, Any] | None:
        """Return the figure that has these settings, if it is exactly one."""

        def fits(figure: Settings) -> bool:
            return all(settings.get(k) == v for k, v in figure.items() if k != ACCURACY)

        found = [figure for figure in self.figures if fits(figure)]
        return found[0] if len(found) == 1 else None

    @property
    def varied(self) -> list[str]:
        """The settings in which figures of one method differ."""
        names = {name: None for figure in self.figures for name in figure if name != ACCURACY}
        pairs = [(a, b) for a in self.figures for b in self.figures]
        alike = [(a, b) for a, b in pairs if a["strategy"] == b["strategy"]]
        return [name for name in names if any(a.get(name) != b.get(name) for a, b in alike)]

    def row_of(self, settings: Settings) -> tuple[str, str]:
        """Return the method, and the settings that tell its figures apart."""
        named = [name for name in self.varied if name in settings]
        words = [f"{name.rpartition('.')[2]}={settings[name]}" for name in named]
        return settings["strategy"], ", ".join(words)


def columns_of(paper: str, folder: Path = PAPERS) -> list[Column]:
    """Return the columns of a paper's tables.

    Raises
    ------
    ConfigError
        If there is no such paper, or a column names an unknown setting.
    """
    columns = []
    for one in load_toml(folder / f"{paper}.toml", "paper file")["columns"]:
        where, size = (flatten(one.get(key, {})) for key in ("where", "size"))
        figures = [flatten(figure) for figure in one["figures"]]
        columns.append(Column(one["table"], where, size, figures, one.get("beside", [])))
        named = {*where, *size}.union(*figures)
        if unknown := sorted(named - {ACCURACY, *known_names()}):
            raise ConfigError(
                f"papers/{paper}.toml names {', '.join(unknown)}, which is not a setting; "
                "`fedkd list settings` shows all."
            )
    return columns


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
        order = [column.row_of(figure) for figure in column.figures]
        if all("." in name for name in column.varied):
            order.append((REFERENCE, ""))
        for part in column.beside:
            found = {(row.method, row.settings): row for row in _runs_beside(column, part, order)}
            yield from (found[key] for key in dict.fromkeys(order) if key in found)


def _runs_beside(column: Column, part: Settings, order: list[tuple[str, str]]) -> Iterator[Beside]:
    conditions = flatten(part.get("with", {}))
    last = conditions.pop("round", None)
    rows: dict[tuple[str, str], str] = {}
    for name in part["sets"]:
        for label, runs in groups_of(compared(name)).items():
            settings = runs[0].settings
            figure = column.figure_of(settings)
            key = column.row_of(figure) if figure else (settings["strategy"], "")
            # Settings that a method does not read do not count.
            fits = all(settings.get(name, value) == value for name, value in conditions.items())
            # `local` of a second set is that of the first again.
            if not fits or not (figure or key[0] == REFERENCE) or rows.get(key, name) != name:
                continue
            if key in rows and key in order:
                raise ValueError(f"{name} has several runs for {label} of {part['data']}.")
            rows[key] = name
            accuracies = [100 * run.accuracy_at(last) for run in runs]
            own, theirs = gains(compared(name), label, last), figure[ACCURACY] if figure else None
            method, named = key
            place = (column.table, part["data"], method, named)
            yield Beside(*place, runs, accuracies, own, theirs)


def paper_rows() -> Iterator[dict[str, Any]]:
    """Yield the rows of the table ``papers``."""
    for paper in sorted(file.stem for file in PAPERS.glob("*.toml")):
        for row in beside(paper):
            theirs = np.nan if row.theirs is None else row.theirs
            yield {
                "paper": paper,
                **{key: getattr(row, key) for key in ("table", "data", "method", "settings")},
                "seeds": len(row.runs),
                **mean_and_spread("ours", row.accuracies),
                **in_points("gain", effect_of(row.gains) if row.gains else None),
                "theirs": theirs,
                "difference": round(mean(row.accuracies) - theirs, 4),
                **makers(row.runs),
            }


def beside_paper(comparison: Comparison, paper: str, table: str) -> str:
    """Return own runs beside the numbers of one of a paper's tables, in Markdown.

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
