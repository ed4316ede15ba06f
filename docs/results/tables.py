"""Markdown tables of published runs and measurements, for `check.py`.

Accuracies are in percent, ± is over seeds, and gains are in points. A gain's round brackets are its
95% interval by Student's t over seeds. A caption that is made with the table says how many seeds
there are, which code made the runs, and what CIFAR-10 is.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from columns import (
    COLUMNS,
    REFERENCE,
    Result,
    accuracy_with,
    heading,
    in_points,
    led_by,
    results,
    with_spread,
)
from measurements import read_measurements
from runs import UNRECORDED, maker, makers_in_words, set_names

from fedkd_flwr.analysis.columns import COLUMNS as COMPARED
from fedkd_flwr.analysis.columns import in_bytes
from fedkd_flwr.analysis.significance import Effect, effects_of
from fedkd_flwr.config.flat_config import flatten
from fedkd_flwr.config.toml_files import load_toml

HERE = Path(__file__).parent
OPTIONS = ("by", "columns", "paper", "methods", "megabytes")
PAPERS = (HERE / "papers", HERE.parents[1] / "conf" / "sweeps" / "papers")


def markdown(headings: list[str], rows: list[list[str]]) -> str:
    """Return a table. A column whose heading ends in a colon is right-aligned."""
    rule = ["---:" if heading.endswith(":") else "---" for heading in headings]
    names = [heading.removesuffix(":") for heading in headings]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [names, rule, *rows])


def gain_of(effect: Effect) -> str:
    """Return a mean gain in points with its interval."""
    row = {"gain": effect.gain, "gain_low": effect.low, "gain_high": effect.high}
    return COMPARED["gain"].text(row)


# ---- Tables ----------------------------------------------------------------------------

Groups = dict[tuple[str, ...], list[Result]]


def table(*words: str) -> str:
    """Return one row per method and combination of settings.

    Parameters
    ----------
    *words : str
        Names of sets; ``columns=NAME,...`` of `COLUMNS`, or ``gain``, ``verdict``, ``leads``,
        ``paper``, ``difference`` and ``over:METHOD``; ``by=SETTING,...`` that tell rows apart,
        ``round`` among them; ``paper=FILE:NUMBER``, a column of a file in papers/ or
        conf/sweeps/papers; ``KEY=VALUE`` for settings that runs must have. Rows are in the order of
        accuracy, or of the settings where ``by`` is given.
    """
    sets, options, conditions = _parted(words)
    names = [name for name in options.get("by", "").split(",") if name]
    columns = options["columns"].split(",")
    groups: Groups = {}
    for name in sets:
        for result in results(name, conditions, every_round="round" in names):
            stem = [name.rpartition("/")[2]] if len(sets) > 1 else []
            key = (*stem, f"`{result.strategy}`", *(str(result.value(name)) for name in names))
            groups.setdefault(key, []).append(result)
    tested = {k: g for k, g in groups.items() if not g[0].is_reference}
    effects = _effects_by_family(tested, by_round="round" in names)
    figures = paper_figures(options["paper"]) if "paper" in options else []
    cells = _Cells(groups, effects, figures)
    rows = [
        [*key, *(cells.of(column, key) for column in columns)] for key in _ordered(groups, names)
    ]
    headings = [*(["runs"] if len(sets) > 1 else []), "method", *(f"`{name}`" for name in names)]
    text = markdown([*headings, *(cells.heading(column) for column in columns)], rows)
    return f"{text}\n{caption(groups, effects, 'verdict' in columns)}\n"


@dataclass(frozen=True)
class _Cells:
    """The cells of a table, by row."""

    groups: Groups
    effects: dict[tuple[str, ...], Effect]
    figures: list[dict[str, Any]]

    def heading(self, column: str) -> str:
        if column.startswith("over:"):
            return f"over `{column.removeprefix('over:')}`, by seed"
        if column == "leads":
            return "methods that it is shown to lead:"
        return COLUMNS[column][0] if column in COLUMNS else heading(column)

    def of(self, column: str, key: tuple[str, ...]) -> str:
        own = self.groups[key]
        if column in ("gain", "verdict"):
            effect = self.effects.get(key)
            if effect is None or effect.seeds == 0 or np.isnan(effect.gain):
                return ""
            return gain_of(effect) if column == "gain" else str(effect.outcome)
        if column == "leads":
            return str(len(led_by(own[0].set_name, own[0].strategy)))
        if column in ("paper", "difference"):
            return self._beside_paper(column, own)
        if column.startswith("over:"):
            return self._over(column.removeprefix("over:"), key)
        return COLUMNS[column][1](own)

    def _beside_paper(self, column: str, own: list[Result]) -> str:
        figure = figure_of(own[0], self.figures)
        if figure is None:
            return "-"
        theirs = figure["accuracy"]
        if column == "paper":
            return f"{theirs:.2f}"
        return f"{100 * np.mean([result.accuracy for result in own]) - theirs:+.1f}"

    def _over(self, method: str, key: tuple[str, ...]) -> str:
        """Return the gains over another method, the row with the same settings if it has some."""
        own = self.groups[key]
        rivals = {k: g for k, g in self.groups.items() if g[0].strategy == method}
        # Rows of other sets are on other data.
        rivals = {k: g for k, g in rivals.items() if g[0].set_name == own[0].set_name}
        if own[0].strategy in (method, REFERENCE) or not rivals:
            return ""
        alike = {k: sum(a == b for a, b in zip(k, key, strict=True)) for k in rivals}
        best = max(alike, key=lambda k: alike[k])
        accuracies = {result.seed: result.accuracy for result in rivals[best]}
        return in_points(r.accuracy - accuracies[r.seed] for r in own if r.seed in accuracies)


def _effects_by_family(groups: Groups, by_round: bool) -> dict[tuple[str, ...], Effect]:
    """Return the effects, corrected for the rows of their set: by round, after the same round."""
    families: dict[tuple[str, int], dict[tuple[str, ...], list[float]]] = {}
    for key, own in groups.items():
        family = families.setdefault((own[0].set_name, own[0].round if by_round else 0), {})
        family[key] = [result.gain for result in own]
    return {key: effect for own in families.values() for key, effect in effects_of(own).items()}


def _ordered(groups: Groups, names: list[str]) -> list[tuple[str, ...]]:
    """Return the rows by their settings, or without any by accuracy."""
    if names:
        return sorted(groups, key=lambda key: [_number(part) for part in key])
    means = {key: np.mean([result.accuracy for result in own]) for key, own in groups.items()}
    return sorted(groups, key=lambda key: -means[key])


def _number(text: str) -> tuple[float, str]:
    try:
        return float(text), ""
    except ValueError:
        return float("-inf"), text


def caption(groups: Groups, effects: dict[Any, Effect], has_verdicts: bool) -> str:
    """Return what a reader of the table has to know, in one line."""
    found = [result for own in groups.values() for result in own]
    parts = [_seeds(found), f"made by {makers_in_words(maker(r.run.description) for r in found)}"]
    images = {result.value(key) for result in found for key in ("dataset", "public-dataset")}
    if "cifar10" in images:
        parts.append("CIFAR-10 from JPEG copies of its images")
    if has_verdicts:
        families = sorted({effect.family for effect in effects.values()} - {0})
        counts = " and ".join(str(size) for size in families)
        parts.append(
            f"verdicts: paired t over seeds at 5%, Holm's correction over {counts} rows"
            if families
            else "no verdicts: fewer than 3 seeds"
        )
    sizes = [n for result in found for n in result.run.kept.get("test_images", [])]
    if sizes:
        largest = f" to {max(sizes):,}" if max(sizes) > min(sizes) else ""
        parts.append(f"{min(sizes):,}{largest} test images a client")
    return f"*{'; '.join(parts)}.*"


def _seeds(found: list[Result]) -> str:
    seeds = sorted({result.seed for result in found})
    return f"{'Seed' if len(seeds) == 1 else 'Seeds'} {', '.join(map(str, seeds))}"


def figure_of(result: Result, figures: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the paper's figure with the settings of a result, if it has exactly one."""
    found = [
        figure
        for figure in figures
        if all(result.value(k) == v for k, v in figure.items() if k != "accuracy")
    ]
    return found[0] if len(found) == 1 else None


def paper_figures(words: str) -> list[dict[str, Any]]:
    """Return a column of a paper's table: settings of its rows, and accuracies."""
    name, _, number = words.partition(":")
    file = next(path for folder in PAPERS if (path := folder / f"{name}.toml").exists())
    content = load_toml(file, "paper file")["columns"]
    return [flatten(row) for row in content[int(number) - 1]["figures"]]


def _parted(words: Iterable[str]) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Split words into names, options and settings."""
    sets = [word for word in words if "=" not in word]
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    options = {k: pairs.pop(k) for k in OPTIONS if k in pairs}
    return sets, options, pairs


def at_bytes(*words: str) -> str:
    """Return the accuracy that each method has at equal traffic: one row a method.

    A cell is the accuracy after the last evaluated round whose traffic, with all rounds before it,
    is within the budget. It is empty where not one round is. `local` exchanges nothing, so it has
    the same accuracy in every column.

    Parameters
    ----------
    *words : str
        The name of a set; ``megabytes=NUMBER,...`` of all clients, up and down; ``KEY=VALUE`` for
        settings that runs must have.
    """
    (name,), options, conditions = _parted(words)
    budgets = [float(number) for number in options["megabytes"].split(",")]
    groups: Groups = {}
    for result in results(name, conditions):
        groups.setdefault((f"`{result.strategy}`",), []).append(result)
    rows = [
        [
            *key,
            in_bytes(np.mean([_bytes_a_round(result) for result in own])),
            *(_within(own, budget) for budget in budgets),
        ]
        for key, own in sorted(groups.items(), key=lambda row: _bytes_a_round(row[1][0]))
    ]
    columns = [f"{budget:g} MB" for budget in budgets]
    text = markdown(["method", "a round:", *columns], rows)
    return f"{text}\n{caption(groups, {}, has_verdicts=False)}\n"


def _bytes_a_round(result: Result) -> float:
    kept = result.run.kept
    return float(kept["bytes_to_round"][-1] / kept["rounds"][-1])


def _within(own: list[Result], megabytes: float) -> str:
    """Return the accuracies after the last rounds within a budget, or an empty text."""
    affordable = [
        sum(size <= 1e6 * megabytes for size in result.run.kept["bytes_to_round"]) for result in own
    ]
    if min(affordable) == 0:
        return ""
    return with_spread(
        100 * result.run.accuracies[number - 1]
        for result, number in zip(own, affordable, strict=True)
    )


def gains(*words: str) -> str:
    """Return mean gains over `local`, one row per method and one column per set.

    A gain is bold if the verdict is *better* or *worse*, corrected for all methods of its set. The
    last column counts the sets in which the mean gain is above zero.

    Parameters
    ----------
    *words : str
        Sets, or the start of their names and ``*``; ``methods=NAME,...``, by default all.
    """
    patterns, options, _ = _parted(words)
    sets = [
        name
        for pattern in patterns
        for name in (set_names(pattern[:-1]) if pattern.endswith("*") else [pattern])
    ]
    columns = [_effects_of_set(name) for name in sets]
    order = dict.fromkeys(method for column in columns for method in column)
    methods = options["methods"].split(",") if "methods" in options else list(order)
    rows = []
    for method in methods:
        own = [column.get(method) for column in columns]
        cells = ["" if effect is None else _bold(effect) for effect in own]
        known = [effect for effect in own if effect is not None]
        above, seeds = (
            (sum(effect.gain > 0 for effect in known), len(known)),
            (sum(effect.above for effect in known), sum(effect.seeds for effect in known)),
        )
        rows.append([f"`{method}`", *cells, "{} of {}".format(*above), "{} of {}".format(*seeds)])
    rows.sort(key=lambda row: -int(row[-2].split()[0]))
    headings = [f"{name.rpartition('/')[2]}:" for name in sets]
    found = [result for name in sets for result in results(name)]
    below = caption({(): found}, {}, has_verdicts=False)
    text = markdown(["method", *headings, "means above", "seeds above"], rows)
    return f"{text}\n{below}\n"


def _effects_of_set(name: str) -> dict[str, Effect]:
    own: dict[str, list[float]] = {}
    for result in results(name):
        if result.strategy != REFERENCE:
            own.setdefault(result.strategy, []).append(result.gain)
    return effects_of(own)


def _bold(effect: Effect) -> str:
    mean = in_points([effect.gain])
    return mean if effect.outcome == "not shown" else f"**{mean}**"


def by_model(*words: str) -> str:
    """Return one row per architecture and method: the mean over the clients that have it.

    Parameters
    ----------
    *words : str
        The name of a set whose models are assigned in turn.
    """
    (name,), _, _ = _parted(words)
    found = [result for result in results(name) if result.local and result.strategy != REFERENCE]
    rows, groups = [], {}
    for model in dict.fromkeys(found[0].value("models").split(",")):
        for strategy in dict.fromkeys(result.strategy for result in found):
            own = [result for result in found if result.strategy == strategy]
            alone = [accuracy_with(model, result.local) for result in own]
            reached = [accuracy_with(model, result.run) for result in own]
            gained = np.subtract(reached, alone).tolist()
            effect = effects_of({(strategy,): gained})[strategy,]
            shares = [with_spread(100 * np.array(part)) for part in (alone, reached)]
            cells = [f"`{model.rpartition(':')[2]}`", f"`{strategy}`", *shares]
            rows.append([*cells, gain_of(effect), in_points(gained)])
            groups[strategy,] = own
    headings = ["model", "method", "`local`", "accuracy", "over local, points (95%):"]
    text = markdown([*headings, "gain over `local`, by seed"], rows)
    return f"{text}\n{caption(groups, {}, has_verdicts=False)}\n"


def measured(*words: str) -> str:
    """Return one row per combination of keys of measurements: means over their lines.

    Parameters
    ----------
    *words : str
        The name of the measurements; ``by=KEY,...``; ``columns=KEY:LAYOUT,...``, where a layout is
        Python's, such as ``.2f``, ``pct`` for a fraction in percent, ``count``, ``text``,
        and ``pct-seeds``, ``seeds`` and ``count-seeds`` for each seed; ``KEY=VALUE`` conditions.
    """
    (name,), options, conditions = _parted(words)
    keys = options["by"].split(",")
    columns = [word.split(":") for word in options["columns"].split(",")]
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in read_measurements(name):
        if all(str(line.get(key)) == value for key, value in conditions.items()):
            found.setdefault(tuple(line.get(key, "-") for key in keys), []).append(line)
    if all(isinstance(part, int | float) for choice in found for part in choice):
        found = dict(sorted(found.items()))
    rows = [
        [*map(str, choice), *(_laid_out([one.get(k) for one in own], how) for k, how in columns)]
        for choice, own in found.items()
    ]
    named = [
        f"{key.replace('_', ' ')}{' by seed' if 'seeds' in how else ''}" for key, how in columns
    ]
    text = markdown([*(f"`{key}`" for key in keys), *(f"{name}:" for name in named)], rows)
    makers = makers_in_words(
        one.get("made by", UNRECORDED) for own in found.values() for one in own
    )
    return f"{text}\n*Made by {makers}.*\n"


def _laid_out(values: list[Any], layout: str) -> str:
    if layout == "text":
        return ", ".join(dict.fromkeys(map(str, values)))
    numbers = [value[-1] if isinstance(value, list) else value for value in values]
    if any(value is None for value in numbers):
        return ""
    if layout.endswith("seeds"):
        each = {"pct-seeds": "{:.1%}", "seeds": "{:,.2f}", "count-seeds": "{:,.0f}"}[layout]
        return ", ".join(each.format(value).removesuffix("%") for value in numbers)
    mean = float(np.mean(numbers))
    if layout == "count":
        return f"{mean:,.0f}"
    return f"{100 * mean:.1f}" if layout == "pct" else f"{mean:{layout}}"
