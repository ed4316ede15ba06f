"""The columns of a comparison's table: heading, unit, topic, and which ones a terminal may drop.

Terminal, Markdown, LaTeX, the report and the pages of results take them from here. Parts of 1 are
written in percent, and differences between them in points.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

MISSING = "-"
"""Text of a missing number."""

REFERENCE = "local"
"""The method that every other is compared with, unless another is named."""

# ---- Numbers as text -------------------------------------------------------------------


def percent(fraction: float) -> str:
    """Return a part of 1 in percent, with one digit."""
    return f"{fraction:.1%}"


def points(difference: float) -> str:
    """Return a difference between parts of 1 in points, with its sign; no minus before a zero."""
    return f"{100 * difference:+z.1f}"


def in_bytes(size: float) -> str:
    """Return a number of bytes in the unit that suits it, such as ``12.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        # What three digits round up to 1000 is one of the next unit.
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


def _size_in_points(difference: float) -> str:
    return f"{100 * difference:.1f}"


_share, _count = "{:.0%}".format, "{:,.0f}".format
_one_digit, _four_digits = "{:.1f}".format, "{:.4f}".format

# ---- Columns ---------------------------------------------------------------------------

ACCURACY = "Accuracy, best method first"
SPREAD = "Spread over clients"
CLIENTS = "Gains and losses of clients"
SAFEGUARD = "With a safeguard"
NEW_CLIENTS = "New clients"
MEASURES = "Further measures"
COST = "Cost"


@dataclass(frozen=True)
class Column:
    """A column of a comparison's table.

    The `template` is the heading, with ``{reference}``; the `topic` is the caption of the report's
    table that has the column. A narrow terminal leaves columns out in the order of `left_out`, 0
    for never.
    """

    name: str
    template: str
    write: Callable[[Any], str]
    topic: str = ACCURACY
    left_out: int = 0

    @property
    def heading(self) -> str:
        """What a reader sees where methods are compared with `REFERENCE`."""
        return self.heading_over(REFERENCE)

    def heading_over(self, reference: str) -> str:
        """Return the heading where methods are compared with a reference."""
        return self.template.format(reference=reference)

    def text(self, row: Mapping[Any, Any]) -> str:
        """Return the cell of a row, with its interval or deviation where the row has one.

        They are in the columns ``NAME_low`` and ``NAME_high``, or ``NAME_std``.
        """
        value = row[self.name]
        if pd.isna(value):
            return MISSING
        low, high, deviation = (row.get(f"{self.name}_{end}") for end in ("low", "high", "std"))
        if not (pd.isna(low) or pd.isna(high)):
            return f"{self.write(value)} ({self.write(low)} to {self.write(high)})"
        if not pd.isna(deviation):
            return f"{self.write(value).removesuffix('%')} ± {self.write(deviation)}"
        return self.write(value)


COLUMNS = {
    column.name: column
    for column in (
        Column("seeds", "seeds", "{:.0f}".format, left_out=3),
        Column("accuracy", "accuracy, last round", percent),
        Column("accuracy_chosen", "accuracy, validation round", percent, left_out=23),
        Column("trained_accuracy", "after local training", percent, left_out=26),
        Column("received_accuracy", "as received", percent, left_out=25),
        Column("distilled_accuracy", "after distillation", percent, left_out=25),
        Column("gain", "over {reference}, points (95%)", points, left_out=24),
        Column("verdict", "verdict", str),
        Column("clients_std", "std over clients, points", _size_in_points, SPREAD, 4),
        Column("clients_worst", "worst client", percent, SPREAD, 7),
        Column("clients_decile", "bottom decile", percent, SPREAD, 16),
        Column("clients_worst_tenth", "worst 10%", percent, SPREAD, 10),
        Column("jain", "Jain's index", _four_digits, SPREAD, 9),
        Column("beats_local", "beat {reference}", _share, CLIENTS, 21),
        Column("harmed", "below {reference}", _share, CLIENTS, 20),
        Column("harmed_shown", "shown harmed", _share, CLIENTS, 22),
        Column("harmed_estimate", "harmed, noise removed", _share, CLIENTS, 19),
        Column("worst_loss", "worst loss, points", _size_in_points, CLIENTS, 17),
        Column("safeguarded_accuracy", "safeguarded", percent, SAFEGUARD, 30),
        Column("private_accuracy", "private model", percent, SAFEGUARD, 28),
        Column("safeguarded_harmed", "below private, shown", _share, SAFEGUARD, 29),
        Column("safeguard_weight", "weight of method", _share, SAFEGUARD, 27),
        Column("new_accuracy", "new clients", percent, NEW_CLIENTS),
        Column("new_worst", "worst new client", percent, NEW_CLIENTS, 8),
        Column("new_beats_local", "new beat {reference}", _share, NEW_CLIENTS, 18),
        Column("nll", "NLL", _four_digits, MEASURES, 11),
        Column("calibration_error", "ECE", _four_digits, MEASURES, 12),
        Column("auc", "AUC", _four_digits, MEASURES, 13),
        Column("f1", "F1", _four_digits, MEASURES),
        Column("balanced_accuracy", "balanced accuracy", percent, MEASURES),
        Column("held_accuracy", "classes held", percent, MEASURES, 15),
        Column("other_accuracy", "classes not held", percent, MEASURES, 14),
        Column("numbers", "numbers", _count, COST, 1),
        Column("bytes", "bytes", in_bytes, COST, 6),
        Column("gradient_steps", "gradient steps of a client", _count, COST, 2),
        Column("seconds", "seconds", _one_digit, COST, 5),
        Column("rounds_to_target", "rounds to target", _one_digit, COST),
        Column("bytes_to_target", "bytes to target", in_bytes, COST),
        Column("seconds_to_target", "seconds to target", _one_digit, COST),
    )
}
"""All columns by name, in the order to show them; a table has some of them."""


def columns_of(table: pd.DataFrame) -> list[Column]:
    """Return the columns that a table of means over seeds has, in the order to show them."""
    return [column for name, column in COLUMNS.items() if name in table]
