"""Methods beside `local` with at least as many gradient steps; see `check.py`.

In most tables a client of `local` takes fewer steps than one of a method that distills or
fine-tunes. Here `local` has more steps in each round, and a step size that was tuned with them.
"""

import functools

from columns import REFERENCE, Result, results, steps_of_method
from tables import caption, gain_of, markdown
from ten_seeds import effects

from fedkd_flwr.analysis.significance import Effect, Outcome, effects_of


def table(name: str, controls: str) -> str:
    """Return a row for each longer `local`, and for each method with more steps than `local`.

    Parameters
    ----------
    name : str
        The set of the methods.
    controls : str
        A set of `local` with more steps on the same splits and seeds.
    """
    longer, others = _longer(controls), with_more_steps(name)
    before, equal = over_local(name, controls), over_equal_steps(name, controls)
    rows = [
        [
            f"`{method}`",
            f"{steps_of_method(own):,}",
            gain_of(before[method]),
            gain_of(equal[method]) if method in equal else "",
            str(equal[method].outcome) if method in equal else "",
        ]
        for method, own in {**longer, **others}.items()
    ]
    rows.sort(key=lambda row: -before[row[0].strip("`")].gain)
    headings = [
        "method", "gradient steps of a client", "over `local`, points (95%)",
        "over `local` with as many steps, points (95%)", "verdict:",
    ]  # fmt: skip
    groups = {(method,): own for method, own in {**longer, **others}.items()}
    lost = ", ".join(f"`{method}`" for method in no_longer_better(name, controls))
    note = f"*Better* than the shorter `local` only: {lost}.\n\n" if lost else ""
    return f"{markdown(headings, rows)}\n{note}{caption(groups, equal, has_verdicts=True)}\n"


@functools.cache
def over_local(name: str, controls: str) -> dict[str, Effect]:
    """Return the gains of longer `local` and of methods with more steps over the set's `local`."""
    local = _by_seed(_by_method(name)[REFERENCE])
    rows = {**_longer(controls), **with_more_steps(name)}
    return effects_of({method: _gains(own, local) for method, own in rows.items()})


@functools.cache
def over_equal_steps(name: str, controls: str) -> dict[str, Effect]:
    """Return the gain of each method with more steps over the shortest `local` with as many steps.

    Verdicts are corrected for these methods. One with more steps than any `local` is left out.
    """
    longer = _longer(controls)
    gains = {}
    for method, own in with_more_steps(name).items():
        enough = [
            rival for rival in longer.values() if steps_of_method(rival) >= steps_of_method(own)
        ]
        if enough:
            gains[method] = _gains(own, _by_seed(min(enough, key=steps_of_method)))
    return effects_of(gains)


def no_longer_better(name: str, controls: str) -> list[str]:
    """Return the methods that are better than `local`, but not than `local` with as many steps."""
    before, equal = effects(name), over_equal_steps(name, controls)
    return [
        method
        for method, effect in equal.items()
        if before[method].outcome is Outcome.BETTER and effect.outcome is not Outcome.BETTER
    ]


def with_more_steps(name: str) -> dict[str, list[Result]]:
    """Return the results of the methods of a set whose clients take more steps than `local`'s."""
    found = _by_method(name)
    least = steps_of_method(found[REFERENCE])
    return {method: own for method, own in found.items() if steps_of_method(own) > least}


def _by_method(name: str) -> dict[str, list[Result]]:
    """Return the results of a set by method."""
    found: dict[str, list[Result]] = {}
    for result in results(name):
        found.setdefault(result.strategy, []).append(result)
    return found


def _longer(controls: str) -> dict[str, list[Result]]:
    """Return the results of each number of steps of `local`, the smallest first."""
    found: dict[int, list[Result]] = {}
    for result in results(controls):
        found.setdefault(result.run.settings["local-iterations"], []).append(result)
    return {
        f"{REFERENCE}, {steps_of_method(found[number]):,} steps": found[number]
        for number in sorted(found)
    }


def _by_seed(own: list[Result]) -> dict[int, float]:
    return {result.seed: result.accuracy for result in own}


def _gains(own: list[Result], rival: dict[int, float]) -> list[float]:
    return [result.accuracy - rival[result.seed] for result in own]
