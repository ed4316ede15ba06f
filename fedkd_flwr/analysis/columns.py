"""The columns of a comparison's table: heading, unit and topic, and which ones a short table has.

Terminal, Markdown, LaTeX, the report and the pages of results take them from here. Parts of 1 are
written in percent, and differences between them in points.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
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
_four_digits = "{:.4f}".format

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
    table that has the column.
    """

    name: str
    template: str
    write: Callable[[Any], str]
    topic: str = ACCURACY

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
        Column("seeds", "seeds", "{:.0f}".format),
        Column("accuracy", "accuracy, last round", percent),
        Column("accuracy_chosen", "accuracy, validation round", percent),
        Column("trained_accuracy", "after local training", percent),
        Column("received_accuracy", "as received", percent),
        Column("distilled_accuracy", "after distillation", percent),
        Column("gain", "over {reference}, points (95%)", points),
        Column("verdict", "verdict", str),
        Column("clients_std", "std over clients, points", _size_in_points, SPREAD),
        Column("clients_worst", "worst client", percent, SPREAD),
        Column("clients_decile", "bottom decile", percent, SPREAD),
        Column("clients_worst_tenth", "worst 10%", percent, SPREAD),
        Column("jain", "Jain's index", _four_digits, SPREAD),
        Column("beats_local", "beat {reference}", _share, CLIENTS),
        Column("harmed", "below {reference}", _share, CLIENTS),
        Column("harmed_shown", "shown harmed", _share, CLIENTS),
        Column("worst_loss", "worst loss, points", _size_in_points, CLIENTS),
        Column("safeguarded_accuracy", "safeguarded", percent, SAFEGUARD),
        Column("private_accuracy", "private model", percent, SAFEGUARD),
        Column("safeguarded_harmed", "below private, shown", _share, SAFEGUARD),
        Column("safeguard_weight", "weight of method", _share, SAFEGUARD),
        Column("new_accuracy", "new clients", percent, NEW_CLIENTS),
        Column("new_worst", "worst new client", percent, NEW_CLIENTS),
        Column("new_beats_local", "new beat {reference}", _share, NEW_CLIENTS),
        Column("nll", "NLL", _four_digits, MEASURES),
        Column("calibration_error", "ECE", _four_digits, MEASURES),
        Column("auc", "AUC", _four_digits, MEASURES),
        Column("f1", "F1", _four_digits, MEASURES),
        Column("balanced_accuracy", "balanced accuracy", percent, MEASURES),
        Column("held_accuracy", "classes held", percent, MEASURES),
        Column("other_accuracy", "classes not held", percent, MEASURES),
        Column("numbers", "numbers", _count, COST),
        Column("bytes", "bytes", in_bytes, COST),
        Column("gradient_steps", "gradient steps of a client", _count, COST),
    )
}
"""All columns by name, in the order to show them; a table has some of them."""


ON_REQUEST = ("new_accuracy", "f1", "balanced_accuracy")
"""Columns that a table has only where somebody asked for them."""

OTHER_MODELS = ("accuracy_chosen", "trained_accuracy", "received_accuracy")
"""Accuracies of models or rounds that can be those of the last round."""


def columns_of(table: pd.DataFrame) -> list[Column]:
    """Return the columns that a table of means over seeds has, in the order to show them.

    An accuracy that no row has, or that is that of the last round in every row, is left out.
    """
    silent = [name for name in OTHER_MODELS if name in table and _says_nothing(table, name)]
    return [column for name, column in COLUMNS.items() if name in table and name not in silent]


def _says_nothing(table: pd.DataFrame, name: str) -> bool:
    values = table[name].astype(float)
    is_same = np.allclose(values, table["accuracy"], rtol=0, atol=1e-12)
    return bool(values.isna().all() or is_same)
