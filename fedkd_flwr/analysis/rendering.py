"""A comparison's table as a reader sees it: in Markdown, in LaTeX, and its numbers as text.

Parts of 1 are written in percent, and differences between them in points.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from fedkd_flwr.analysis.references import REFERENCE

HEADINGS = {
    "seeds": "seeds",
    "accuracy": "accuracy, last round",
    "accuracy_chosen": "accuracy, validation round",
    "gain": "over local, points (95%)",
    "verdict": "verdict",
    "clients_std": "std over clients, points",
    "clients_worst": "worst client",
    "clients_decile": "bottom decile",
    "clients_worst_tenth": "worst 10%",
    "jain": "Jain's index",
    "beats_local": "beat local",
    "harmed": "below local",
    "harmed_shown": "shown harmed",
    "harmed_estimate": "harmed, noise removed",
    "worst_loss": "worst loss, points",
    "new_accuracy": "new clients",
    "new_worst": "worst new client",
    "new_beats_local": "new beat local",
    "nll": "NLL",
    "calibration_error": "ECE",
    "auc": "AUC",
    "f1": "F1",
    "balanced_accuracy": "balanced accuracy",
    "held_accuracy": "classes held",
    "other_accuracy": "classes not held",
    "numbers": "numbers",
    "bytes": "bytes",
    "gradient_steps": "gradient steps of a client",
    "seconds": "seconds",
    "rounds_to_target": "rounds to target",
    "bytes_to_target": "bytes to target",
    "seconds_to_target": "seconds to target",
    "paper": "paper",
    "difference": "difference, points",
}
"""Columns of a rendered table, each where the table has it; another reference replaces local."""

LAYOUTS = {
    "seeds": ".0f",
    "accuracy": ".1%",
    "accuracy_chosen": ".1%",
    "gain": "+z.1f",
    "clients_std": ".1f",
    "clients_worst": ".1%",
    "clients_decile": ".1%",
    "clients_worst_tenth": ".1%",
    "jain": ".4f",
    "beats_local": ".0%",
    "harmed": ".0%",
    "harmed_shown": ".0%",
    "harmed_estimate": ".0%",
    "worst_loss": ".1f",
    "new_accuracy": ".1%",
    "new_worst": ".1%",
    "new_beats_local": ".0%",
    "nll": ".4f",
    "calibration_error": ".4f",
    "auc": ".4f",
    "f1": ".4f",
    "balanced_accuracy": ".1%",
    "held_accuracy": ".1%",
    "other_accuracy": ".1%",
    "numbers": ",.0f",
    "gradient_steps": ",.0f",
    "seconds": ".1f",
    "rounds_to_target": ".1f",
    "seconds_to_target": ".1f",
    "paper": ".1%",
    "difference": "+z.1f",
}
"""How the numbers of a column are written; bytes have a unit that suits them."""

IN_POINTS = {"gain", "clients_std", "worst_loss", "difference"}
"""Columns of differences between parts of 1, which are written a hundred times as large."""

MISSING = "-"
"""Text of a missing number."""


def headings_of(table: pd.DataFrame, against: str = REFERENCE) -> dict[str, str]:
    """Return the headings of a table's columns, by the names of the columns.

    Parameters
    ----------
    table : DataFrame
        Of means over seeds.
    against : str
        What methods are compared with.
    """
    return {
        name: heading.replace(REFERENCE, against)
        for name, heading in HEADINGS.items()
        if name in table
    }


def rendered(table: pd.DataFrame, against: str = REFERENCE) -> pd.DataFrame:
    """Return a table of means over seeds as text, under the headings that a reader sees."""
    names = headings_of(table, against)
    return pd.DataFrame(
        [
            [str(label), *(_rendered_number(name, row) for name in names)]
            for label, row in table.iterrows()
        ],
        columns=["method", *names.values()],
    )


def in_markdown(text: pd.DataFrame, remarks: Sequence[str]) -> str:
    """Return a rendered table in Markdown, the remarks as a list below it."""
    rows = markdown_table(text)
    listed = "".join(f"- {remark}\n" for remark in remarks)
    return f"{rows}\n{listed}" if listed else rows


def in_latex(text: pd.DataFrame, remarks: Sequence[str]) -> str:
    """Return a rendered table for the package booktabs, the remarks as comments."""
    comments = "".join(f"% {remark}\n" for remark in remarks)
    return comments + latex_table(text)


def by_client(clients: pd.DataFrame, labels: Iterable[Any]) -> pd.DataFrame:
    """Return each client's mean accuracy over seeds, one column per method.

    Parameters
    ----------
    clients : DataFrame
        Of `fedkd_flwr.analysis.results.client_results`.
    labels : iterable of str
        The methods in the order of the columns.
    """
    means = clients.pivot_table("accuracy", "partition_id", "method").reindex(columns=list(labels))
    return means.rename_axis("client").reset_index().rename_axis(columns=None)


def rendered_clients(means: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracies of `by_client` as text."""
    text = means.drop(columns="client").map(lambda accuracy: _number(accuracy, ".1%"))
    text.insert(0, "client", means["client"].map(str))
    return text


def markdown_table(text: pd.DataFrame) -> str:
    """Return a table of text in Markdown, all columns but the first right-aligned."""
    lines = [
        list(text.columns),
        ["---", *["---:"] * (text.shape[1] - 1)],
        *text.to_numpy().tolist(),
    ]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def latex_table(text: pd.DataFrame) -> str:
    """Return a table of text for the package booktabs."""
    layout = "l" + "r" * (text.shape[1] - 1)
    rows = text.to_latex(index=False, escape=True, column_format=layout)
    return str(rows.replace("±", r"$\pm$"))


def in_bytes(size: float) -> str:
    """Return a number of bytes in the unit that suits it, such as ``12.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        # What three digits round up to 1000 is one of the next unit.
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


def _rendered_number(name: str, row: pd.Series) -> str:
    """Return one cell of a row."""
    if name == "verdict":
        return MISSING if pd.isna(row[name]) else str(row[name])
    if f"{name}_low" in row:
        return _with_interval(name, row)
    if f"{name}_std" in row:
        return _with_spread(row[name], row[f"{name}_std"])
    if name in ("bytes", "bytes_to_target"):
        return MISSING if pd.isna(row[name]) else in_bytes(row[name])
    return _number(100 * row[name] if name in IN_POINTS else row[name], LAYOUTS[name])


def _with_interval(name: str, row: pd.Series) -> str:
    """Return a number of points and its interval if there is one."""
    number, low, high = (
        _number(100 * row[column], LAYOUTS[name])
        for column in (name, f"{name}_low", f"{name}_high")
    )
    return number if MISSING in (number, low, high) else f"{number} ({low} to {high})"


def _number(value: float, layout: str) -> str:
    return MISSING if pd.isna(value) else format(value, layout)


def _with_spread(mean: float, spread: float) -> str:
    """Return the mean of parts of 1, and their deviation if there is one."""
    if pd.isna(mean) or pd.isna(spread):
        return _number(mean, ".1%")
    return f"{100 * mean:.1f} ± {100 * spread:.1f}%"
