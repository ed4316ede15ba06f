"""A comparison's table as a reader sees it: as text, in Markdown and in LaTeX."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from fedkd_flwr.analysis.columns import (
    COLUMNS,
    MISSING,
    ON_REQUEST,
    REFERENCE,
    columns_of,
    percent,
    points,
)

SHORT_HEADINGS = {
    "accuracy": "accuracy",
    "gain": "points over {reference}",
    "gradient_steps": "steps",
}
"""Headings where only a few columns are shown."""


def rendered(table: pd.DataFrame, against: str = REFERENCE) -> pd.DataFrame:
    """Return a table of means over seeds as text, under the headings that a reader sees."""
    columns = columns_of(table)
    rows = [
        [str(label), *(column.text(row) for column in columns)]
        for label, row in table.to_dict("index").items()
    ]
    headings = [column.heading_over(against) for column in columns]
    return pd.DataFrame(rows, columns=["method", *headings])


def in_short(table: pd.DataFrame, names: Sequence[str], against: str) -> pd.DataFrame:
    """Return a few columns as text: a gain with half its interval, and what somebody asked for."""
    text = pd.DataFrame({"method": table.index.map(str)})
    for name in (*names, *ON_REQUEST):
        if name not in table:
            continue
        column = COLUMNS[name]
        heading = SHORT_HEADINGS.get(name, column.template).format(reference=against)
        write = _gain if name == "gain" else column.text
        text[heading] = [write(row) for row in table.to_dict("records")]
    return text


def _gain(row: Mapping[Hashable, Any]) -> str:
    if pd.isna(row["gain"]):
        return MISSING
    half = (row.get("gain_high", math.nan) - row.get("gain_low", math.nan)) / 2
    interval = "" if pd.isna(half) else f" ± {100 * half:.1f}"
    return f"{points(row['gain'])}{interval}"


def in_markdown(text: pd.DataFrame, remarks: Sequence[str] = ()) -> str:
    """Return a table of text in Markdown, numbers right-aligned, the remarks as a list below it."""
    rule = ["---", *["---:"] * (text.shape[1] - 1)]
    lines = [list(text.columns), rule, *text.to_numpy().tolist()]
    rows = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    listed = "".join(f"- {remark}\n" for remark in remarks)
    return f"{rows}\n{listed}" if listed else rows


def in_latex(text: pd.DataFrame, remarks: Sequence[str] = ()) -> str:
    """Return a table of text for the package booktabs, the remarks as comments."""
    comments = "".join(f"% {remark}\n" for remark in remarks)
    layout = "l" + "r" * (text.shape[1] - 1)
    rows = text.to_latex(index=False, escape=True, column_format=layout)
    return comments + rows.replace("±", r"$\pm$")


def by_client(clients: pd.DataFrame, labels: Iterable[Any]) -> pd.DataFrame:
    """Return each client's mean accuracy over seeds, one column per method."""
    means = clients.pivot_table("accuracy", "partition_id", "method").reindex(columns=list(labels))
    return means.rename_axis("client").reset_index().rename_axis(columns=None)


def rendered_clients(means: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracies of `by_client` as text."""
    text = means.drop(columns="client").map(percent, na_action="ignore").fillna(MISSING)
    text.insert(0, "client", means["client"].map(str))
    return text
