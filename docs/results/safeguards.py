"""Tables of what a safeguard gives, over published sets; see `check.py`."""

from columns import results
from runs import read_set
from tables import caption

from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.analysis.safeguard_criterion import criterion


def table(*names: str) -> str:
    """Return the table of `fedkd safeguard` over some sets, with both sides of the criterion.

    Comparisons have the last part of their sets' names.
    """
    found = criterion({name.rpartition("/")[2]: compare(read_set(name)) for name in names})
    groups = {(name,): results(name, {}) for name in names}
    return f"{found.to_markdown()}\n{caption(groups, {}, has_verdicts=False)}\n"
