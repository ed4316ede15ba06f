"""Values for sentences, computed from the published runs; see `claims.toml`.

A method is its strategy and settings, as in ``fedmd,kt-pfl.temperature=1.0,round=30``.
"""

import functools
import json
import re
from pathlib import Path

import answers
import numpy as np
import pandas as pd
from columns import (
    REFERENCE,
    Result,
    accuracy_with,
    bytes_of,
    chosen_gains,
    in_points,
    results,
)
from equal_steps import over_equal_steps, over_local
from fresh_seeds import same_verdicts  # noqa: F401 - called by claims.toml
from measurements import read_measurements
from runs import set_names
from safeguards import side_from_seed  # noqa: F401 - called by claims.toml
from ten_seeds import effects

from benchmarks.records import read_records
from benchmarks.table import three_digits
from fedkd_flwr.analysis.columns import in_bytes
from fedkd_flwr.analysis.significance import Effect, Outcome, effects_of
from fedkd_flwr.methods import METHODS

ROOT = Path(__file__).parents[2]
SPEED = Path(__file__).parent / "speed"


def of_method(name: str, method: str) -> list[Result]:
    """Return the results of a method in a set, by seed.

    Raises
    ------
    ValueError
        If there is none, or more than one of a seed.
    """
    # Values may have commas, such as several models.
    strategy, *pairs = re.split(r",(?=[\w.-]+=)", method)
    conditions = dict(pair.split("=", 1) for pair in pairs)
    found = [r for r in results(name, conditions) if r.strategy == strategy]
    if not found or len({result.seed for result in found}) != len(found):
        raise ValueError(f"{name} has no run, or several of a seed, of {method}.")
    return found


def accuracy(name: str, method: str) -> str:
    """Return the mean accuracy in percent."""
    return f"{100 * np.mean([result.accuracy for result in of_method(name, method)]):.1f}"


def gain(name: str, method: str, over: str = "") -> str:
    """Return the mean gain over `local`, or over another method, in points."""
    return in_points([np.mean(_gains(name, method, over))])


def interval(name: str, method: str, over: str = "") -> str:
    """Return the mean gain in points with its 95% interval, by paired t over seeds."""
    return _interval(_gains(name, method, over))


def interval_with(name: str, method: str, model: str, first_seed: str) -> str:
    """Return the interval over `local` for the clients with a model, in seeds from one on."""
    found = [r for r in of_method(name, method) if r.local and r.seed >= int(first_seed)]
    return _interval([accuracy_with(model, r.run) - accuracy_with(model, r.local) for r in found])


def change(name: str, former: str, method: str) -> str:
    """Return the interval of a method's gain in a set minus that in another, paired by seed."""
    before = {result.seed: result.gain for result in of_method(former, method)}
    found = [result for result in of_method(name, method) if result.seed in before]
    return _interval([result.gain - before[result.seed] for result in found])


def searches_won_by_preset(split: str) -> str:
    """Return for how many methods the preset's settings beat other trials with all rounds."""
    lines = read_measurements("benchmark-tuned/retuned-searches")
    own = [x for x in lines if x["split"] == split and x["strategy"] != REFERENCE]
    won = [x for x in own if x["run to the end"] > 1 and x["chosen"].startswith("the preset")]
    return f"{len(won)} of {len(own)}"


def _interval(gains: list[float]) -> str:
    (effect,) = effects_of({"gains": gains}).values()
    return _with_interval(effect)


def _with_interval(effect: Effect) -> str:
    low, high = in_points([effect.low]), in_points([effect.high])
    return f"{in_points([effect.gain])} ({low} to {high})"


def _gains(name: str, method: str, over: str) -> list[float]:
    own = of_method(name, method)
    if not over:
        return [result.gain for result in own]
    others = {result.seed: result.accuracy for result in of_method(name, over)}
    return [result.accuracy - others[result.seed] for result in own]


def distance(name: str, method: str, over: str = "") -> str:
    """Return the absolute mean gain, for sentences that state its direction."""
    return gain(name, method, over).lstrip("+-")


def fewer_bytes(name: str, method: str, than: str) -> str:
    """Return the bytes of another method as a multiple of this method's."""
    return f"{bytes_of(of_method(name, than)) / bytes_of(of_method(name, method)):.0f}"


def share_of_bytes(name: str, method: str, of: str) -> str:
    """Return the bytes of a method as a share of another's."""
    return f"{bytes_of(of_method(name, method)) / bytes_of(of_method(name, of)):.0%}"


def exchanged(name: str, method: str) -> str:
    """Return the bytes that a run exchanges."""
    return in_bytes(bytes_of(of_method(name, method)))


def gains_at_validation_round(name: str, method: str) -> str:
    """Return each seed's gain over `local`, each at its round of best validation accuracy."""
    return chosen_gains(of_method(name, method)).replace("+", "").replace(", ", " and ")


def epsilon(name: str, method: str) -> str:
    """Return epsilon after the last round."""
    return f"{max(result.run.kept['epsilon'] for result in of_method(name, method)):,.0f}"


def _tuned() -> list[str]:
    return [n for n in set_names("benchmark-tuned/") if n.partition("/")[2][:4] in ("cifa", "fash")]


@functools.cache
def _tuned_effects() -> pd.DataFrame:
    """Return one row per method and tuned comparison; Holm's correction is within a comparison."""
    rows = []
    for name in _tuned():
        own: dict[str, list[float]] = {}
        for result in results(name):
            if result.strategy != REFERENCE:
                own.setdefault(result.strategy, []).append(result.gain)
        for method, effect in effects_of(own).items():
            rows.append({"set": name, "method": method, "effect": effect, "gain": effect.gain})
    return pd.DataFrame(rows)


def means_above(method: str) -> str:
    """Return in how many tuned comparisons a method is above `local` in the mean."""
    own = _tuned_effects().query("method == @method")
    return f"{(own['gain'] > 0).sum()} of {len(own)}"


def seeds_above(method: str) -> str:
    """Return in how many runs of all tuned comparisons a method is above `local`."""
    own = _tuned_effects().query("method == @method")["effect"]
    return f"{sum(e.above for e in own)} of {sum(e.seeds for e in own)}"


def rows_above() -> str:
    """Return how many rows of the tuned comparisons are above `local` in every seed."""
    effects = _tuned_effects()["effect"]
    return f"{sum(e.above == e.seeds for e in effects)} of {len(effects)}"


def tuned_rows() -> str:
    """Return the number of rows of the tuned comparisons."""
    return str(len(_tuned_effects()))


def shown(outcome: str) -> str:
    """Return how many rows of the tuned comparisons have an outcome after Holm's correction."""
    return str(sum(effect.outcome == outcome for effect in _tuned_effects()["effect"]))


def outcomes(name: str, outcome: str) -> str:
    """Return how many methods of a set have an outcome after Holm's correction."""
    found = [effect.outcome for effect in effects(name).values()]
    return f"{found.count(outcome)} of {len(found)}"


def at_equal_steps(name: str, controls: str, outcome: str) -> str:
    """Return the methods with an outcome over `local` with as many steps, the largest gain first.

    Parameters
    ----------
    name, controls : str
        Sets of the methods, and of `local` with more steps.
    outcome : str
        ``better``, ``worse`` or ``not shown``.
    """
    found = over_equal_steps(name, controls)
    order = sorted(found, key=lambda method: -found[method].gain)
    return ", ".join(method for method in order if found[method].outcome == outcome)


def better_at_equal_steps(method: str) -> str:
    """Return in how many tuned comparisons a method is better than `local` with as many steps."""
    counts = answers.outcomes()[method]
    return f"{counts[Outcome.BETTER]} of {counts.total()}"


def interval_at_equal_steps(name: str, controls: str, method: str) -> str:
    """Return the mean gain over `local` with as many steps, with its 95% interval."""
    return _with_interval(over_equal_steps(name, controls)[method])


def interval_of_longer_local(name: str, controls: str, steps: str) -> str:
    """Return the mean gain of `local` with more steps over the set's, with its 95% interval."""
    return _with_interval(over_local(name, controls)[f"{REFERENCE}, {steps} steps"])


def methods() -> str:
    """Return the number of registered methods besides `local`."""
    return f"{len(METHODS) - 1} methods and local training"


def on_page(page: str, value: str) -> str:
    """Return a value of another page, which is checked there.

    Raises
    ------
    ValueError
        If the page lacks it.
    """
    if value not in (ROOT / page).read_text():
        raise ValueError(f"{page} lacks {value}.")
    return value


def measured(name: str, column: str, scale: str, layout: str, *conditions: str) -> str:
    """Return the mean of a column of measurements."""
    wanted = dict(pair.split("=", 1) for pair in conditions)
    values = [
        line[column][-1] if isinstance(line[column], list) else line[column]
        for line in read_measurements(name)
        if all(str(line.get(key)) == value for key, value in wanted.items())
    ]
    return f"{float(scale) * np.mean(values):{layout}}"


def bound(name: str, seed: str) -> str:
    """Return the mean accuracy of `local` in percent if all clients not filled up had 100."""
    (line,) = (
        line
        for line in read_measurements(name)
        if line["strategy"] == "local" and line["learning-rate"] == 0.005
        if line["seed"] == int(seed)
    )
    filled_up = line["clients filled up"]
    others = line["clients one class"] + line["clients several"]
    mean = (filled_up * line["accuracy filled up"] + others) / (filled_up + others)
    return f"{100 * mean:.1f}"


def cost(strategy: str, mixing: str) -> str:
    """Return the size of `signed_cost`, for sentences that state its direction."""
    return signed_cost(strategy, mixing).lstrip("+-")


def signed_cost(strategy: str, mixing: str) -> str:
    """Return what a poisoned client costs the others, compared with a silent one, in points."""
    lines = pd.DataFrame(read_measurements("robustness/digits"))
    own = lines.query("strategy == @strategy and mixing == @mixing")
    means = own.groupby("client")["accuracy"].mean()
    return in_points([means["poisoned"] - means["silent"]])


def speed(part: str, row: str) -> str:
    """Return the ``measured`` or ``baseline`` median of a row of the benchmarks, or its ratio."""
    rows = {one.result.name: one.result for one in read_records(SPEED / "speed.json")}
    found = getattr(rows[row], part)
    return f"{found:.2f}" if part == "ratio" else f"{three_digits(found)} {rows[row].unit}"


def nodes(part: str, which: str = "median") -> str:
    """Return the seconds of a round with real nodes."""
    values = json.loads((SPEED / "nodes.json").read_text())[part]
    return f"{getattr(np, which)(values):.1f}"


def fresh_is_better() -> str:
    """Return in how many runs fresh batch-normalization statistics are better."""
    gains = [line["gain of fresh"] for line in read_measurements("statistics/fresh-or-kept")]
    return f"{sum(gain > 0 for gain in gains)} of {len(gains)}"
