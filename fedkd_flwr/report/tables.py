"""Tables of the report, with the text and the sort key of each cell."""

import math
from dataclasses import dataclass

import pandas as pd

from fedkd_flwr.analysis.columns import COLUMNS, MISSING, columns_of, percent, points
from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.groups import each_run
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
    text, keys = comparison.rendered(), comparison.table
    if "verdict" in keys:
        keys = keys.assign(verdict=keys["verdict"].map(ORDER_OF_VERDICTS))
    keys = keys.rename(
        columns={c.name: c.heading_over(comparison.against) for c in columns_of(keys)}
    )
    by_topic: dict[str, list[str]] = {column.topic: [] for column in COLUMNS.values()}
    for column in columns_of(comparison.table):
        by_topic[column.topic].append(column.heading_over(comparison.against))
    return [
        _table(topic, text[["method", *headings]], keys[headings])
        for topic, headings in by_topic.items()
        if headings
    ]


def pair_tables(comparison: Comparison) -> list[Table]:
    """Return what each method gains over each other one; no table for fewer than three."""
    labels, pairs = list(comparison.table.index), comparison.pairs
    text = matrix_of_pairs(pairs, labels)
    if text.empty:
        return []
    headings = [f"over {label}" for label in labels]
    gains = [
        [100 * pairs[row, column].gain if (row, column) in pairs else math.nan for column in labels]
        for row in labels
    ]
    text = text.set_axis(["method", *headings], axis=1)
    return [_table("Every method over each other", text, pd.DataFrame(gains, columns=headings))]


def client_table(comparison: Comparison) -> Table:
    """Return one row per method, seed and client, of the last evaluated round."""
    clients, of_reference = comparison.clients, f"accuracy of {comparison.against}"
    keys = pd.DataFrame(
        {
            "seed": clients["seed"],
            "client": clients["partition_id"],
            "accuracy": clients["accuracy"],
            of_reference: clients["local_accuracy"],
            "gain": clients["gain"],
        }
    )
    text = keys.astype({"seed": str, "client": str})
    for heading in ("accuracy", of_reference):
        text[heading] = keys[heading].map(percent, na_action="ignore")
    text["gain"] = keys["gain"].map(lambda gain: f"{points(gain)} points", na_action="ignore")
    text.insert(0, "method", clients["method"])
    return _table("Clients at the last evaluated round", text.fillna(MISSING), keys)


def run_table(comparison: Comparison) -> Table:
    """Return one row per run: method, seed, duration, device, start and directory."""
    text = pd.DataFrame(
        {
            "method": label,
            "seed": run.config["seed"],
            "rounds": (run.summary or {})["rounds"],
            "seconds": (run.summary or {})["seconds"],
            "device": str(run.description.get("device", MISSING)),
            "started": str(run.description.get("started", MISSING)),
            "directory": run.path.name,
        }
        for label, run in each_run(comparison.groups)
    )
    keys = text[["seed", "rounds", "seconds"]]
    text = text.assign(seconds=text["seconds"].map("{:.1f}".format)).astype(str)
    return _table("Runs", text, keys)


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


def _table(caption: str, text: pd.DataFrame, keys: pd.DataFrame) -> Table:
    """Return a table.

    Parameters
    ----------
    caption : str
        What it shows.
    text : DataFrame
        Its cells.
    keys : DataFrame
        The numbers by which columns with the same headings are sorted.
    """
    numbers = keys.reindex(columns=text.columns).to_numpy(dtype=float)
    rows = [
        [Cell(cell, None if math.isnan(key) else key) for cell, key in zip(*row, strict=True)]
        for row in zip(text.to_numpy().tolist(), numbers.tolist(), strict=True)
    ]
    return Table(caption, list(text.columns), set(keys.columns), rows)
