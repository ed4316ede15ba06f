"""Tables of what a safeguard gives, over published sets; see `check.py`."""

import functools

import pandas as pd
from columns import results
from runs import compared
from tables import caption

from fedkd_flwr.analysis.columns import Column, percent, points
from fedkd_flwr.analysis.rendering import in_markdown
from fedkd_flwr.analysis.safeguard_criterion import Criterion, criterion, of_clients

COLUMNS = (
    Column("seeds", "seeds", "{:.0f}".format),
    Column("private_accuracy", "private model", percent),
    Column("method", "method alone over private, points (95%)", points),
    Column("safeguarded", "safeguarded over private, points (95%)", points),
    Column("method_harmed", "method alone shown worse", percent),
    Column("safeguarded_harmed", "safeguarded shown worse", percent),
    Column("safeguard_weight", "weight of method", "{:.0%}".format),
)


def table(*names: str) -> str:
    """Return what a safeguard gives by set and method, with both sides of the criterion.

    Comparisons have the last part of their sets' names.
    """
    found = _criterion(*names)
    rows = [
        [data, f"`{label}`", *(column.text(row) for column in COLUMNS)]
        for (data, label), row in found.table.to_dict("index").items()
    ]
    headings = ["data", "method", *(column.heading for column in COLUMNS)]
    return _captioned(in_markdown(pd.DataFrame(rows, columns=headings), found.notes), names)


def sides(*names: str) -> str:
    """Return a table of both sides of the criterion: over several sets, then over each alone."""
    rows = {"all": _criterion(*names)} if len(names) > 1 else {}
    rows |= {_short(name): _criterion(name) for name in names}
    table = pd.DataFrame([_sides(data, found) for data, found in rows.items()])
    return _captioned(in_markdown(table, []), names)


def side_from_seed(side: str, first_seed: str, *names: str) -> str:
    """Return one side of the criterion over the seeds from one on: ``harmed`` or ``kept``."""
    clients = _criterion(*names).clients
    return str(getattr(of_clients(clients[clients["seed"] >= int(first_seed)]), side)())


def _captioned(markdown: str, names: tuple[str, ...]) -> str:
    groups = {(name,): results(name, {}) for name in names}
    return f"{markdown}\n{caption(groups, {}, has_verdicts=False)}\n"


@functools.cache
def _criterion(*names: str) -> Criterion:
    return criterion({_short(name): compared(name).clients for name in names})


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _sides(data: str, found: Criterion) -> dict[str, str]:
    """Return a row of `sides`."""
    losses = -100 * found.clients[["method_gain", "safeguarded_gain"]].min()
    return {
        "data": data,
        "clients": f"{len(found.clients):,}",
        "method alone shown worse (95%)": str(found.harmed("method")),
        "safeguarded shown worse (95%)": str(found.harmed()),
        "kept of the mean gain (95%)": str(found.kept()),
        "largest loss, points: alone, safeguarded": ", ".join(f"{loss:.1f}" for loss in losses),
    }
