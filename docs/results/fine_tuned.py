"""The tuned comparisons with every model fine-tuned before its evaluation; see `check.py`."""

from collections import Counter
from collections.abc import Iterable

from answers import counted
from columns import REFERENCE, results, with_spread
from fresh_seeds import SPLITS
from runs import set_names
from tables import caption, gain_of, markdown
from ten_seeds import effects

from fedkd_flwr.analysis.significance import Effect, Outcome, effects_of

TUNED, FINE_TUNED = "benchmark-tuned/retuned-", "benchmark-tuned/fine-tuned-"


def table(part: str) -> str:
    """Return one row per method, in the order of its gain over a fine-tuned `local`.

    Parameters
    ----------
    part : str
        The last part of the sets' names.
    """
    found = results(f"{FINE_TUNED}{part}")
    before, after = effects(f"{TUNED}{part}"), effects(f"{FINE_TUNED}{part}")
    rows = []
    for method in sorted({*after, REFERENCE}, key=lambda method: -_gain(after.get(method))):
        own = [result for result in found if result.strategy == method]
        cells = [f"`{method}`", with_spread(100 * result.accuracy for result in own)]
        if method in after:
            old, new = before[method], after[method]
            cells += [gain_of(new), str(new.outcome), gain_of(old), str(old.outcome)]
        rows.append([*cells, *[""] * (6 - len(cells))])
    headings = [
        "method", "accuracy", "over fine-tuned `local`, points (95%):", "verdict:",
        "without fine-tuning, points (95%):", "verdict without:",
    ]  # fmt: skip
    return f"{markdown(headings, rows)}\n{caption({(): found}, after, has_verdicts=True)}\n"


def counts() -> str:
    """Return by comparison what fine-tuning gives `local`, and how many methods have an outcome.

    An arrow is between the numbers without fine-tuning and with it.
    """
    parts, rows = _published(), []
    for part in parts:
        before, after = effects(f"{TUNED}{part}"), effects(f"{FINE_TUNED}{part}")
        numbers = [_changed(before, after, outcome) for outcome in Outcome]
        rows.append([SPLITS[part], gain_of(of_local(part)), str(len(after)), *numbers])
    headings = [
        "clients", "fine-tuned `local` over `local`, points (95%):", "methods:",
        *(f"{outcome}:" for outcome in Outcome),
    ]  # fmt: skip
    return f"{markdown(headings, rows)}\n{_caption(parts)}\n"


def by_method() -> str:
    """Return in how many comparisons each fine-tuned method has each outcome."""
    parts, found = _published(), dict[str, Counter[Outcome]]()
    for part in parts:
        for method, effect in effects(f"{FINE_TUNED}{part}").items():
            found.setdefault(method, Counter())[effect.outcome] += 1
    return f"{counted(found)}\n{_caption(parts)}\n"


def of_local(part: str) -> Effect:
    """Return what `local` gains by fine-tuning."""
    before, after = (
        {one.seed: one.accuracy for one in results(f"{name}{part}") if one.strategy == REFERENCE}
        for name in (TUNED, FINE_TUNED)
    )
    gains = [accuracy - before[seed] for seed, accuracy in after.items()]
    return effects_of({REFERENCE: gains})[REFERENCE]


def _published() -> list[str]:
    """Return the last part of the names of the sets that are published."""
    return [part for part in SPLITS if f"{FINE_TUNED}{part}" in set_names()]


def _caption(parts: Iterable[str]) -> str:
    found = {(part,): results(f"{FINE_TUNED}{part}") for part in parts}
    return caption(found, {}, has_verdicts=False)


def _changed(before: dict[str, Effect], after: dict[str, Effect], outcome: Outcome) -> str:
    """Return how many methods have an outcome without fine-tuning, and with it."""
    numbers = [sum(one[method].outcome is outcome for method in after) for one in (before, after)]
    return "{} → {}".format(*numbers)


def _gain(effect: Effect | None) -> float:
    return effect.gain if effect else 0.0
