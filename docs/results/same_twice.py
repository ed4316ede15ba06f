"""`local` with another order of batches, a comparison of a method with itself; see `check.py`."""

from columns import REFERENCE, Result, results
from fresh_seeds import SPLITS
from tables import caption, gain_of, markdown
from ten_seeds import gains_by_method

from fedkd_flwr.analysis.significance import Effect, effects_of


def table(before: str, after: str) -> str:
    """Return one row per comparison: the difference, and whether it is called a gain.

    Parameters
    ----------
    before, after : str
        First part of the names of the published sets, and of those with `local` in two orders.
    """
    found = {part: _second_order(f"{after}{part}") for part in SPLITS}
    rows = []
    for part, own in found.items():
        alone, among = effect_alone(own), effect_among(f"{before}{part}", own)
        rows.append(
            [
                SPLITS[part],
                gain_of(alone),
                str(alone.outcome),
                str(among.outcome),
                str(among.family),
            ]
        )
    headings = [
        "clients", "over `local`, points (95%):", "verdict as the only row:",
        "verdict as a row of the tuned table:", "rows of that table:",
    ]  # fmt: skip
    groups = {(part,): own for part, own in found.items()}
    return f"{markdown(headings, rows)}\n{caption(groups, {}, has_verdicts=False)}\n"


def effect_alone(own: list[Result]) -> Effect:
    """Return the effect without any correction."""
    return effects_of({REFERENCE: [result.gain for result in own]})[REFERENCE]


def effect_among(name: str, own: list[Result]) -> Effect:
    """Return the effect with Holm's correction over the methods of a set and this row."""
    gains = {REFERENCE: [result.gain for result in own]}
    return effects_of({**gains, **gains_by_method(name)})[REFERENCE]


def _second_order(name: str) -> list[Result]:
    """Return the runs of `local` with the second order of batches."""
    return [result for result in results(name) if not result.is_reference]
