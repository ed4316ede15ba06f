"""Markdown tables of published runs, for `check_tables.py`.

Files are those of `publish_runs.py`. Accuracies are in percent, ± is over seeds, and gains are in
points.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from publish_runs import PublishedRun, read_published

import fedkd_flwr
from fedkd_flwr.analysis.paper import beside_paper, read_figures
from fedkd_flwr.analysis.rendering import HEADINGS, in_bytes, in_markdown, rendered
from fedkd_flwr.analysis.significance import Outcome, effects_of
from fedkd_flwr.analysis.targets import COSTS, cost_to_target
from fedkd_flwr.config_files import load_toml
from fedkd_flwr.flat import flatten

REFERENCE = "local"
SECOND_REFERENCE = "fedavg"
"""Methods are also compared with this method, where it was run."""


# ---- Cells and lines -------------------------------------------------------------------


def markdown(headings: list[str], rows: list[list[str]]) -> str:
    """Return a table. A column whose heading ends in a colon is right-aligned."""
    rule = ["---:" if heading.endswith(":") else "---" for heading in headings]
    names = [heading.removesuffix(":") for heading in headings]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [names, rule, *rows])


def with_spread(values: Any) -> str:
    """Return the mean of fractions in percent, with the standard deviation over seeds."""
    percent = 100 * np.asarray(values, dtype=float)
    spread = f" ± {percent.std(ddof=1):.1f}" if len(percent) > 1 else ""
    return f"{percent.mean():.1f}{spread}"


def in_points(gains: Any) -> str:
    """Return gains, given as fractions, in points."""
    return ", ".join(f"{round(100 * gain, 1) + 0.0:+.1f}" for gain in gains)  # avoids -0.0


def mean_gain(gains: Any) -> str:
    """Return the mean gain in points, and the number of seeds with a gain."""
    gains = np.asarray(gains, dtype=float)
    return f"{in_points([gains.mean()])} ({(gains > 1e-9).sum()}/{len(gains)})"


def better(gains: dict[Any, Any]) -> set[Any]:
    """Return the methods that are better than the reference of these gains, one a seed."""
    effects = effects_of(gains)
    return {label for label, effect in effects.items() if effect.outcome is Outcome.BETTER}


# ---- Which runs ------------------------------------------------------------------------


def has_settings(run: PublishedRun, conditions: dict[str, str]) -> bool:
    """Return whether a run has the given settings. Settings of other methods are ignored."""
    return all(str(run.settings.get(key, value)) == value for key, value in conditions.items())


def parted(words: tuple[Any, ...]) -> tuple[list[Path], list[str], dict[str, str]]:
    """Split arguments into files, names and ``KEY=VALUE`` pairs."""
    files = [word for word in words if isinstance(word, Path)]
    names = [word for word in words if isinstance(word, str) and "=" not in word]
    pairs = [word.split("=", 1) for word in words if isinstance(word, str) and "=" in word]
    return files, names, dict(pairs)


def reference(run: PublishedRun, runs: list[PublishedRun]) -> PublishedRun:
    """Return the run of `local` with the same seed that shares most of a run's settings."""

    def differences(other: PublishedRun) -> int:
        own, others = run.settings, other.settings
        return sum(own[k] != others[k] for k in own if "." not in k and k != "strategy")

    peers = [
        other
        for other in runs
        if other.config["strategy"] == REFERENCE and other.config["seed"] == run.config["seed"]
    ]
    return peers[0] if len(peers) == 1 else min(peers, key=differences)


# ---- Tables ----------------------------------------------------------------------------


def comparison(published: Path, figures: Path | None = None) -> str:
    """Return the table and verdicts of `fedkd compare`, with a paper's numbers if given."""
    found = fedkd_flwr.compare(read_published(published))
    if figures:
        found = beside_paper(found, read_figures(figures))
    against = []
    if SECOND_REFERENCE in found.groups:
        against = fedkd_flwr.compare(read_published(published), against=SECOND_REFERENCE).verdicts
    # Older files lack the validation accuracy by which settings are ranked.
    notes = [note for note in found.notes if not note.startswith("The settings of")]
    unknown = [name for name in HEADINGS if name in found.table and found.table[name].isna().all()]
    text = rendered(found.table.drop(columns=unknown))
    return in_markdown(text, [*found.verdicts, *against, *notes])


def methods(published: Path) -> str:
    """Return one row per method: accuracy, clients that lose, traffic and time, best first.

    A method that is better than `local`, by the test of `fedkd compare` corrected for the methods
    of the table, is bold. Bytes and seconds to `local` are the cost up to the first round in
    which a method has the mean accuracy that `local` of the same seed has after its last.
    """
    runs = pd.DataFrame(map(_result, read_published(published))).set_index("method")
    runs = runs.sort_values("seed")
    order = runs.groupby("method")["accuracy"].mean().sort_values(ascending=False, kind="stable")
    references = [name for name in (REFERENCE, SECOND_REFERENCE) if name in order]
    headings = [
        "method",
        "accuracy",
        *(f"over `{name}`" for name in references),
        "bottom decile:",
        "below `local`:",
        "worst loss:",
        "exchanged:",
        "bytes to `local`:",
        "seconds to `local`:",
        "seconds:",
    ]
    local = runs.loc[[REFERENCE]].set_index("seed")["accuracy"]
    bold = better(
        {
            label: own.to_numpy() - local[runs.loc[[label], "seed"]].to_numpy()
            for label, own in runs.groupby("method")["accuracy"]
            if label != REFERENCE
        }
    )
    rows = [
        _method_row(label, runs.loc[[label]], runs, references, label in bold)
        for label in order.index
    ]
    return markdown(headings, rows)


def _result(run: PublishedRun) -> dict[str, Any]:
    """Return the values of one run for `methods`."""
    return {
        "method": run.config["strategy"],
        "seed": run.config["seed"],
        "accuracy": run.accuracies[-1],
        "clients": np.array(run.kept["accuracy_of_clients"]),
        "bytes": run.kept["bytes_up"] + run.kept["bytes_down"],
        "seconds": run.kept["seconds"],
        "run": run,
    }


def _method_row(
    label: str, own: pd.DataFrame, runs: pd.DataFrame, references: list[str], is_better: bool
) -> list[str]:
    """Return the row of one method; `runs` has all methods."""
    local = runs.loc[[REFERENCE]].set_index("seed").loc[own["seed"]]
    mean = with_spread(own["accuracy"])
    over = [own["accuracy"].to_numpy() - runs.loc[[name], "accuracy"] for name in references]
    lost = np.stack(local["clients"].tolist()) - np.stack(own["clients"].tolist())
    costs = pd.DataFrame(map(_cost, own["run"], local["accuracy"]))
    is_reference = label == REFERENCE
    return [
        f"`{label}`",
        f"**{mean}**" if is_better else mean,
        *(
            "" if label == name else mean_gain(gain)
            for name, gain in zip(references, over, strict=True)
        ),
        f"{100 * own['clients'].map(lambda clients: np.quantile(clients, 0.1)).mean():.1f}",
        "" if is_reference else f"{(lost > 0).mean():.0%}",
        "" if is_reference else f"{100 * lost.max(axis=1).clip(min=0).mean():.0f}",
        in_bytes(own["bytes"].mean()),
        _if_always(costs["bytes_to_target"], in_bytes),
        _if_always(costs["seconds_to_target"], "{:.1f}".format),
        f"{own['seconds'].mean():.1f}",
    ]


def _cost(run: PublishedRun, target: float) -> dict[str, float]:
    """Return the costs of reaching an accuracy, or NaN if they were not stored."""
    is_known = "bytes_to_round" in run.kept
    return cost_to_target(run, target) if is_known else dict.fromkeys(COSTS, np.nan)


def _if_always(values: pd.Series, layout: Callable[[float], str]) -> str:
    """Return a mean as text, or a dash if a seed is missing, which would bias the mean."""
    return "-" if values.isna().any() else layout(values.mean())


def by_seed(*words: Any) -> str:
    """Return one row per method and file: accuracy and gain over `local` of every seed.

    Gains of three points or more in every seed are bold. Arguments are files, and settings that
    distinguish runs.
    """
    files, names, conditions = parted(words)
    rows = []
    for file in files:
        table = accuracies(file, names, conditions)
        for (strategy, *choice), own in table.groupby(["strategy", *names], sort=False):
            gains = in_points(own["gain"])
            is_large = own["gain"].min() >= 0.03
            told = [f"{n.rpartition('.')[2]} {v}" for n, v in zip(names, choice, strict=True)]
            rows.append(
                [
                    f"[{file.stem}]({file.stem}.md)",
                    ", ".join([f"`{strategy}`", *(t for t in told if not t.endswith(" -"))]),
                    ", ".join(map(str, own["seed"])),
                    ", ".join(f"{100 * value:.1f}" for value in own["accuracy"]),
                    "" if strategy == REFERENCE else f"**{gains}**" if is_large else gains,
                ]
            )
    headings = ["runs", "method", "seeds", "accuracy", f"gain over `{REFERENCE}`"]
    return markdown(headings, rows)


def by_setting(*words: Any) -> str:
    """Return one row per combination of settings: mean accuracy, and each seed's gain over `local`.

    Arguments are files and settings. ``round`` adds a row for every evaluated round; without it,
    the last round counts.
    """
    files, names, conditions = parted(words)
    table = pd.concat([accuracies(file, names, conditions) for file in files])
    rows = [
        [
            f"`{strategy}`",
            *map(str, choice),
            with_spread(own["accuracy"]),
            "" if strategy == REFERENCE else in_points(own["gain"]),
        ]
        for (strategy, *choice), own in table.groupby(["strategy", *names], sort=True)
    ]
    headings = ["method", *(f"`{name}`" for name in names), "accuracy"]
    return markdown([*headings, f"gain over `{REFERENCE}`, by seed"], rows)


def accuracies(file: Path, names: list[str], conditions: dict[str, str]) -> pd.DataFrame:
    """Return accuracy and gain over `local` of each run of a file.

    Parameters
    ----------
    file : Path
        Of `publish_runs.py`.
    names : list of str
        Settings that distinguish runs. ``round`` stands for all evaluated rounds.
    conditions : dict
        Settings that runs must have; see `has_settings`.

    Returns
    -------
    DataFrame
        Columns ``strategy``, the settings (``-`` where a method does not read one), ``seed``,
        ``accuracy`` and ``gain`` as fractions; in the order of the file, seeds ascending.
    """
    runs = read_published(file)
    rows: list[dict[str, Any]] = []
    for run in sorted(runs, key=lambda run: run.config["seed"]):
        if not has_settings(run, conditions):
            continue
        settings, course = run.settings, course_of(run)
        local = course_of(reference(run, runs))
        chosen = course.index if "round" in names else course.index[-1:]
        for number in chosen:
            known = {**settings, "round": number}
            told = {name: known.get(name, "-") for name in names}
            result = {"accuracy": course[number], "gain": course[number] - at(local, number)}
            rows.append(
                {"strategy": settings["strategy"], **told, "seed": settings["seed"], **result}
            )
    table = pd.DataFrame(rows)
    order = list(dict.fromkeys(run.config["strategy"] for run in runs))
    return table.sort_values(
        "strategy", key=lambda strategies: strategies.map(order.index), kind="stable"
    )


def course_of(run: PublishedRun) -> pd.Series:
    """Return the mean accuracy by evaluated round, as fractions."""
    return pd.Series(run.accuracies, index=run.kept["rounds"])


def at(course: pd.Series, server_round: int) -> float:
    """Return the accuracy after a round, or after the last if a run has fewer rounds."""
    return float(course[min(server_round, course.index[-1])])


def controlled(published: Path, name: str, control: str) -> str:
    """Return one row per value of a setting: accuracy, gains over a control and over `local`.

    Parameters
    ----------
    published : Path
        Runs of one method and `local`.
    name : str
        The setting.
    control : str
        The value of the control.
    """
    table = accuracies(published, [name], {})
    is_local = table["strategy"] == REFERENCE
    local, own = table[is_local], table[~is_local]
    matched = own[own[name].map(str) == control].set_index("seed")["accuracy"]
    rows = []
    for value, runs in own.groupby(name):
        over_control = runs["accuracy"].to_numpy() - matched[runs["seed"]]
        is_control = str(value) == control
        rows.append(
            [
                f"{value} (control)" if is_control else str(value),
                with_spread(runs["accuracy"]),
                "" if is_control else in_points(over_control),
                in_points(runs["gain"]),
            ]
        )
    rows.append([f"`{REFERENCE}`", with_spread(local["accuracy"]), "", ""])
    headings = [f"`{name}`", "accuracy", "over the control, by seed"]
    return markdown([*headings, f"over `{REFERENCE}`, by seed"], rows)


def across(*words: Any) -> str:
    """Return one row per method, one column per file: mean accuracy, bold if better than `local`.

    Arguments are files, settings to tell methods apart by, and ``KEY=VALUE`` that runs have to
    have. The order is that of the first file. What is better is tested as by `fedkd compare`,
    corrected for the methods of a column.
    """
    files, names, conditions = parted(words)
    columns = [dict(_across_cells(file, names, conditions)) for file in files]
    rows = []
    for choice in dict.fromkeys(choice for column in columns for choice in column):
        strategy, *told = choice
        known = [f"{n.rpartition('.')[2]} {v}" for n, v in zip(names, told, strict=True)]
        label = ", ".join([f"`{strategy}`", *(text for text in known if not text.endswith(" -"))])
        rows.append([label, *(column.get(choice, "not run") for column in columns)])
    return markdown(["method", *(file.stem for file in files)], rows)


def _across_cells(
    file: Path, names: list[str], conditions: dict[str, str]
) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield each method with its settings and its accuracy, best first."""
    groups = accuracies(file, names, conditions).groupby(["strategy", *names], sort=False)
    means = groups["accuracy"].mean().sort_values(ascending=False, kind="stable")
    keys = [choice if isinstance(choice, tuple) else (choice,) for choice in means.index]
    bold = better(
        {key: groups.get_group(key)["gain"].to_numpy() for key in keys if key[0] != REFERENCE}
    )
    for key in keys:
        own = groups.get_group(key)
        text = with_spread(own["accuracy"])
        if len(own) == 1:
            text += " (one seed)"
        yield key, f"**{text}**" if key in bold else text


def papers(figures: Path) -> str:
    """Return a paper's table: one row per method, one column per data set or split."""
    content = load_toml(figures, "file of figures")["columns"]
    columns = [
        {_label(flatten(row)): f"{row['accuracy']:.2f}" for row in column["figures"]}
        for column in content
    ]
    headings = [", ".join(f"{k} {v}" for k, v in flatten(c["where"]).items()) for c in content]
    labels = dict.fromkeys(label for column in columns for label in column)
    rows = [[label, *(column.get(label, "") for column in columns)] for label in labels]
    return markdown(["method", *(f"{heading}:" for heading in headings)], rows)


def at_reduced_scale(figures: Path, column: str, published: Path, *others: str) -> str:
    """Return a paper's column, our runs at reduced scale, and their gains over `local`.

    Parameters
    ----------
    figures : Path
        File of the paper's numbers.
    column : str
        Number of the column, from 1. Its settings of the data are ignored for our runs.
    published : Path
        Our runs.
    *others : str
        ``KEY=VALUE`` conditions for our runs.
    """
    conditions = dict(pair.split("=", 1) for pair in others)
    columns = load_toml(figures, "file of figures")["columns"]
    rows = []
    for row in map(flatten, columns[int(column) - 1]["figures"]):
        theirs, label = float(row.pop("accuracy")), _label(row)
        strategy = row.pop("strategy")
        runs = accuracies(published, [], {**conditions, **{k: str(v) for k, v in row.items()}})
        own = runs[runs["strategy"] == strategy]
        if own.empty:
            rows.append([label, f"{theirs:.2f}", "not run", "", ""])
            continue
        difference = f"{100 * own['accuracy'].mean() - theirs:+.1f}"
        gains = "" if strategy == REFERENCE else in_points(own["gain"])
        rows.append([label, f"{theirs:.2f}", with_spread(own["accuracy"]), difference, gains])
    headings = ["method", "paper:", "ours, reduced scale", "difference:", "over `local`, by seed"]
    return markdown(headings, rows)


def _label(settings: dict[str, Any]) -> str:
    """Return the label of a row of a paper's numbers: the method and its settings."""
    others = {k: v for k, v in settings.items() if k not in ("strategy", "accuracy")}
    told = [f"{key.rpartition('.')[2]} {value}" for key, value in others.items()]
    return ", ".join([f"`{settings['strategy']}`", *told])


def traffic(*words: Any) -> str:
    """Return one row per method and value of a setting: bytes, share of the maximum, accuracy.

    Arguments are a file and the last part of a setting's name, such as ``cache-rounds``, which
    methods can have in different tables.
    """
    files, (ending,), conditions = parted(words)
    rows = []
    for run in read_published(files[0]):
        if not has_settings(run, conditions):
            continue
        settings = run.settings
        value = next((v for k, v in settings.items() if k.endswith(f".{ending}")), "-")
        rows.append(
            {
                "strategy": settings["strategy"],
                "value": value,
                "final": run.accuracies[-1],
                **run.kept,
            }
        )
    runs = pd.DataFrame(rows)
    lines = []
    for strategy, methods_runs in runs.groupby("strategy"):
        means = methods_runs.groupby("value")[["bytes_up", "bytes_down"]].mean()
        totals = means.sum(axis=1)
        for value, (up, down) in means.iterrows():
            own = methods_runs[methods_runs["value"] == value]
            part = f"{totals[value] / totals.max():.0%}" if totals.max() else ""
            lines.append(
                [
                    f"`{strategy}`",
                    str(value),
                    in_bytes(up),
                    in_bytes(down),
                    part,
                    with_spread(own["final"]),
                ]
            )
    headings = ["method", f"`{ending}`", "up:", "down:", "share of maximum:", "accuracy"]
    return markdown(headings, lines)


def noise(published: Path) -> str:
    """Return one row per clip norm and noise multiplier: epsilon, and each method's accuracy."""
    runs = read_published(published)
    kept = pd.DataFrame(
        {
            "strategy": run.config["strategy"],
            "clip": run.config["kt-pfl.clip-norm"],
            "noise": run.config["kt-pfl.noise-multiplier"],
            "epsilon": run.kept.get("epsilon", np.inf),
            "accuracy": run.accuracies[-1],
        }
        for run in runs
        if run.config["strategy"] != REFERENCE
    )
    local = [run.accuracies[-1] for run in runs if run.config["strategy"] == REFERENCE]
    strategies = sorted(kept["strategy"].unique())
    rows = []
    for (clip, multiplier), own in kept.groupby(["clip", "noise"]):
        epsilon = own["epsilon"].max()
        rows.append(
            [
                f"{clip:g}" if clip else "none",
                f"{multiplier:g}",
                "infinite" if np.isinf(epsilon) else f"{epsilon:,.1f}",
                *(with_spread(own.loc[own["strategy"] == s, "accuracy"]) for s in strategies),
            ]
        )
    rows.append([f"`{REFERENCE}`", "", "0", with_spread(local), *[""] * (len(strategies) - 1)])
    headings = ["`clip-norm`", "`noise-multiplier`", "epsilon", *(f"`{s}`" for s in strategies)]
    return markdown(headings, rows)
