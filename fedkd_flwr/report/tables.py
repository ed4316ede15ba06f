"""Tables of the report, with the text and the sort key of each cell."""

from dataclasses import dataclass

import pandas as pd

from fedkd_flwr.analysis.columns import COLUMNS, MISSING, Column, columns_of, percent, points
from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.pairs import matrix_of_pairs
from fedkd_flwr.analysis.settings import defining_settings

ORDER_OF_VERDICTS = {"worse": -1.0, "not shown": 0.0, "better": 1.0}
"""What a column of verdicts is sorted by."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes
    ----------
    text : str
        The shown text.
    key : float or None
        The sort key in a column of numbers; None if missing.
    """

    text: str
    key: float | None = None


@dataclass(frozen=True)
class Table:
    """A sortable table.

    Attributes
    ----------
    caption : str
        What the table shows.
    headings : list of str
        One per column.
    numbers : set of str
        Headings of the columns that are sorted as numbers.
    rows : list of list of Cell
        In their initial order.
    """

    caption: str
    headings: list[str]
    numbers: set[str]
    rows: list[list[Cell]]


def method_tables(comparison: Comparison) -> list[Table]:
    """Return the comparison's columns by topic: one table per topic, one row per method."""
    texts, table = comparison.rendered().set_index("method"), comparison.table
    if "verdict" in table:
        table = table.assign(verdict=table["verdict"].map(ORDER_OF_VERDICTS))
    by_topic: dict[str, list[Column]] = {column.topic: [] for column in COLUMNS.values()}
    for column in columns_of(table):
        by_topic[column.topic].append(column)
    tables = []
    for topic, columns in by_topic.items():
        headings = [column.heading_over(comparison.against) for column in columns]
        rows = [
            [Cell(str(label)), *map(_number, keys, shown)]
            for label, keys, shown in zip(
                table.index,
                table[[column.name for column in columns]].to_numpy(),
                texts[headings].to_numpy(),
                strict=True,
            )
        ]
        if columns:
            tables.append(Table(topic, ["method", *headings], set(headings), rows))
    return tables


def pair_tables(comparison: Comparison) -> list[Table]:
    """Return what each method gains over each other one; no table for fewer than three."""
    matrix = matrix_of_pairs(comparison.pairs, list(comparison.table.index))
    if matrix.empty:
        return []
    pairs = comparison.pairs
    rows = [
        [
            Cell(row),
            *(
                _number(100 * pairs[row, column].gain, text)
                if (row, column) in pairs
                else Cell(text)
                for column, text in zip(matrix.columns[1:], texts, strict=True)
            ),
        ]
        for row, *texts in matrix.itertuples(index=False, name=None)
    ]
    headings = ["method", *(f"over {label}" for label in matrix.columns[1:])]
    return [Table("Every method over each other", headings, set(headings[1:]), rows)]


def client_table(comparison: Comparison) -> Table:
    """Return one row per method, seed and client, of the last evaluated round."""
    numbers = ["accuracy", "local_accuracy", "gain"]
    rows = [
        [
            Cell(str(label)),
            *(Cell(str(number), int(number)) for number in own),
            *(_number(accuracy, percent(accuracy)) for accuracy in accuracies),
            _number(gain, f"{points(gain)} points"),
        ]
        for label, own, (*accuracies, gain) in zip(
            comparison.clients["method"],
            comparison.clients[["seed", "partition_id"]].to_numpy().tolist(),
            comparison.clients[numbers].to_numpy(dtype=float).tolist(),
            strict=True,
        )
    ]
    headings = ["method", "seed", "client", "accuracy", "accuracy of local", "gain"]
    return Table("Clients at the last evaluated round", headings, set(headings[1:]), rows)


def run_table(comparison: Comparison) -> Table:
    """Return one row per run: method, seed, duration, device, start and directory."""
    rows = []
    for label, runs in comparison.groups.items():
        for run in runs:
            summary, description = run.summary or {}, run.description
            seed, seconds = run.config["seed"], summary["seconds"]
            rows.append(
                [
                    Cell(label),
                    Cell(str(seed), seed),
                    Cell(str(summary["rounds"]), summary["rounds"]),
                    Cell(f"{seconds:.1f}", seconds),
                    Cell(str(description.get("device", MISSING))),
                    Cell(str(description.get("started", MISSING))),
                    Cell(run.path.name),
                ]
            )
    headings = ["method", "seed", "rounds", "seconds", "device", "started", "directory"]
    return Table("Runs", headings, set(headings[1:4]), rows)


def settings_of(comparison: Comparison) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the settings that are equal in all methods, and by label those that are not."""
    by_label = {
        label: {
            name: "(empty)" if value == "" else str(value)
            for name, value in defining_settings(runs[0].config).items()
            if name not in ("strategy", "seed")
        }
        for label, runs in comparison.groups.items()
    }
    first, *others = by_label.values()
    shared = {k: text for k, text in first.items() if all(own.get(k) == text for own in others)}
    return shared, {
        label: {name: text for name, text in own.items() if name not in shared}
        for label, own in by_label.items()
    }


def _number(key: float, text: str) -> Cell:
    return Cell(MISSING) if pd.isna(key) else Cell(text, float(key))
