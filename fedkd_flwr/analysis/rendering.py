"""A comparison's table as a reader sees it: in Markdown, in LaTeX, and its numbers as text."""

from collections.abc import Sequence

import pandas as pd

HEADINGS = {
    "seeds": "seeds",
    "accuracy": "accuracy, last round",
    "accuracy_chosen": "accuracy, validation round",
    "clients_std": "std over clients",
    "clients_worst": "worst client",
    "beats_local": "beat local",
    "numbers": "numbers",
    "bytes": "bytes",
    "seconds": "seconds",
}
"""Columns of a rendered table."""

MISSING = "-"
"""Stands for a number that there is not."""


def rendered(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of means over seeds as text, under the headings that a reader sees."""
    return pd.DataFrame(
        [_rendered_row(str(label), row) for label, row in table.iterrows()],
        columns=["method", *HEADINGS.values()],
    )


def in_markdown(table: pd.DataFrame, remarks: Sequence[str]) -> str:
    """Return a table of means over seeds in Markdown, the remarks as a list below it."""
    text = rendered(table)
    lines = [
        list(text.columns),
        ["---", *["---:"] * len(HEADINGS)],
        *text.to_numpy().tolist(),
    ]
    rows = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    listed = "".join(f"- {remark}\n" for remark in remarks)
    return f"{rows}\n{listed}" if listed else rows


def in_latex(table: pd.DataFrame, remarks: Sequence[str]) -> str:
    """Return a table of means over seeds for the package booktabs, the remarks as comments."""
    layout = "l" + "r" * len(HEADINGS)
    rows = rendered(table).to_latex(index=False, escape=True, column_format=layout)
    comments = "".join(f"% {remark}\n" for remark in remarks)
    return comments + rows.replace("±", r"$\pm$")


def in_bytes(size: float) -> str:
    """Return a number of bytes in the unit that suits it, such as ``12.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


def _rendered_row(label: str, row: pd.Series) -> list[str]:
    return [
        label,
        f"{row['seeds']:.0f}",
        _with_spread(row["accuracy"], row["accuracy_std"]),
        _with_spread(row["accuracy_chosen"], row["accuracy_chosen_std"]),
        _number(row["clients_std"], ".4f"),
        _number(row["clients_worst"], ".4f"),
        _number(row["beats_local"], ".0%"),
        _number(row["numbers"], ",.0f"),
        MISSING if pd.isna(row["bytes"]) else in_bytes(row["bytes"]),
        _number(row["seconds"], ".1f"),
    ]


def _number(value: float, layout: str) -> str:
    return MISSING if pd.isna(value) else format(value, layout)


def _with_spread(mean: float, spread: float) -> str:
    return _number(mean, ".4f") + ("" if pd.isna(spread) else f" ± {spread:.4f}")
