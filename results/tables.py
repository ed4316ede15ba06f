"""The tables of ``results/tables``, from the published runs.

Accuracies are in percent and gains in points, both with four decimals. A gain is over `local` with
the same seed; ``gain_low`` and ``gain_high`` are its 95% interval by Student's t over seeds.
"""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedkd_flwr.analysis.across import across_of
from fedkd_flwr.analysis.columns import REFERENCE
from fedkd_flwr.analysis.results import steps_of_a_client
from fedkd_flwr.analysis.safeguard_criterion import Criterion, criterion
from fedkd_flwr.analysis.significance import Effect, Outcome, effect_of, effects_of
from fedkd_flwr.config.toml_files import load_toml
from results.pages import TABLES, phrase, read_table
from results.papers import paper_rows
from results.published import (
    PublishedRun,
    by_seed,
    compared,
    effects,
    in_points,
    makers,
    mean,
    mean_and_spread,
    read_set,
    set_names,
)

INVESTIGATIONS = Path(__file__).parent / "investigations.toml"

SPLITS = {
    "groups": "k-classes-grouped",
    "dirichlet": "dirichlet",
    "groups-mixed": "mixed-k-classes-grouped",
    "dirichlet-mixed": "mixed-dirichlet",
    "cifar10-groups": "cifar10-k-classes-grouped",
    "cifar10-dirichlet": "cifar10-dirichlet",
    "cifar10-groups-mixed": "cifar10-mixed-k-classes-grouped",
    "cifar10-dirichlet-mixed": "cifar10-mixed-dirichlet",
}
"""The comparisons of the tuned benchmark, and how their sets' names end."""

TUNED, STEPS, FINE_TUNED, FRESH = (
    *(f"benchmark-tuned/{start}" for start in ("retuned", "controls-steps", "fine-tuned")),
    "headlines/retuned",
)

ESTIMATORS = ("any-model/digits", "any-model/tumors", "any-model/tumors-nine-silos")
NEW_CLIENTS = "new-clients/fashion-mnist"
GUARDED = (
    *(f"safeguard/{split}" for split in SPLITS.values()),
    *(f"{TUNED}-{split}" for split in SPLITS.values()),
    *(f"safeguard/second-private-model-{split}" for split in [*SPLITS.values()][:4]),
)
SIDES = {
    "safeguard": [f"safeguard/{split}" for split in SPLITS.values()],
    "retuned": [f"{TUNED}-{split}" for split in [*SPLITS.values()][:2]],
    "retuned-mixed": [f"{TUNED}-{split}" for split in [*SPLITS.values()][2:4]],
    "retuned-cifar10": [f"{TUNED}-{split}" for split in [*SPLITS.values()][4:]],
    "second-private-model": [name for name in GUARDED if "second" in name],
}
"""Sets over which a safeguard's two sides are counted together."""

Row = dict[str, Any]


# ---- A row a method and choice of settings -------------------------------------------------


def run_columns(label: str, runs: Sequence[PublishedRun], effect: Effect | None) -> Row:
    """Return the columns that every table of runs has; see `Comparison.groups` for the label."""
    method, _, settings = label.partition(" (")
    accuracies = 100 * np.array([run.accuracies[-1] for run in runs])
    return {
        "method": method,
        "settings": settings.removesuffix(")"),
        "seeds": len(runs),
        **mean_and_spread("accuracy", accuracies),
        **in_points("gain", effect),
        "p": float(f"{effect.p_holm:.6g}") if effect else np.nan,
        "verdict": str(effect.outcome) if effect and effect.seeds else "",
        "steps": mean(map(steps_of_method, runs), 0),
        "bytes": mean((run.summary["bytes_up"] + run.summary["bytes_down"] for run in runs), 0),
        **makers(runs),
    }


def set_rows(name: str) -> list[Row]:
    """Return the rows of a set, the best method first."""
    return [
        run_columns(label, runs, effects(name).get(label))
        for label, runs in compared(name).groups.items()
    ]


def steps_of_method(run: PublishedRun) -> float:
    """Return the gradient steps of the mean client, without those of a safeguard's private model.

    A private model takes the steps of `local`. Accuracies are of the method's model alone.
    """
    settings, taken = run.settings, steps_of_a_client(run)
    if settings["strategy"] == REFERENCE or settings.get("safeguard", "none") == "none":
        return taken
    return taken - settings["local-iterations"] * settings["num-server-rounds"]


# ---- The tuned benchmark -------------------------------------------------------------------


def benchmark() -> list[Row]:
    """Return the rows of the tuned comparisons, with the gain at equal steps."""
    rows = []
    for split, name in SPLITS.items():
        place = {
            "split": split,
            "data": "CIFAR-10" if "cifar10" in split else "Fashion-MNIST",
            "clients": "groups" if "groups" in split else "Dirichlet",
            "models": "mixed" if "mixed" in split else "one",
            "reference": REFERENCE,
        }
        at_equal_steps, pairs = over_equal_steps(name), compared(f"{TUNED}-{name}").pairs
        led = Counter(own for (own, _), effect in pairs.items() if is_better(effect))
        for row in set_rows(f"{TUNED}-{name}"):
            equal = at_equal_steps.get(row["method"])
            verdict = str(equal.outcome) if equal else ""
            steps = {**in_points("gain_steps", equal), "verdict_steps": verdict}
            rows.append({**place, **row, **steps, "leads": led[row["method"]]})
        rows += [{**place, **row} for row in longer_local(name)]
    return rows


def longer_local(name: str) -> list[Row]:
    """Return rows of `local` with more steps, each with its gain over the usual `local`."""
    usual, rows = by_seed(compared(f"{TUNED}-{name}").groups[REFERENCE]), []
    for runs in compared(f"{STEPS}-{name}").groups.values():
        gain = effect_of([run.accuracies[-1] - usual[run.config["seed"]] for run in runs])
        label = f"{REFERENCE} ({steps_of_all(runs)} steps)"
        rows.append({**run_columns(label, runs, gain), "p": np.nan, "verdict": ""})
    return rows


def fresh() -> list[Row]:
    """Return the tuned comparisons that were run again on fresh seeds, before and after."""
    rows = []
    for split, name in SPLITS.items():
        before, after = effects(f"{TUNED}-{name}"), effects(f"{FRESH}-{name}")
        for method in sorted(after, key=lambda method: -before[method].gain):
            old, new = before[method], after[method]
            rows.append(
                {
                    "split": split,
                    "method": method,
                    **in_points("before", old),
                    **in_points("fresh", new),
                    "verdict_before": str(old.outcome),
                    "verdict_fresh": str(new.outcome),
                    "same": "yes" if old.outcome == new.outcome else "no",
                }
            )
    return rows


def is_better(effect: Effect) -> bool:
    """Return whether a gain is shown."""
    return effect.outcome is Outcome.BETTER


@functools.cache
def over_equal_steps(name: str) -> dict[str, Effect]:
    """Return the gain of each method over the shortest `local` that takes as many steps.

    Verdicts of methods with more steps than `local` are corrected for these methods; the others
    have the verdict of the tuned table.

    Raises
    ------
    ValueError
        If a method takes more steps than any `local`.
    """
    tuned = compared(f"{TUNED}-{name}")
    longer = compared(f"{STEPS}-{name}").groups.values()
    steps = {label: steps_of_all(runs) for label, runs in tuned.groups.items()}
    gains = {}
    for label, runs in tuned.groups.items():
        if steps[label] <= steps[REFERENCE]:
            continue
        enough = [own for own in longer if steps_of_all(own) >= steps[label]]
        if not enough:
            raise ValueError(f"{STEPS}-{name} has too few steps for {label}.")
        rival = by_seed(min(enough, key=steps_of_all))
        gains[label] = [accuracy - rival[seed] for seed, accuracy in by_seed(runs).items()]
    return {**effects(f"{TUNED}-{name}"), **effects_of(gains)}


def steps_of_all(runs: Sequence[PublishedRun]) -> int:
    """Return the rounded mean gradient steps of a client."""
    return int(mean(map(steps_of_method, runs), 0))


def answers() -> list[Row]:
    """Return the methods to use, for each kind of clients.

    They are better than `local` with as many steps on both data sets, and no method with a larger
    mean gain has as little traffic. The largest gain comes first, which is the most traffic too.
    """
    table = frame(benchmark())
    rows = []
    for (clients, models), own in table.groupby(["clients", "models"], sort=False):
        shown = own[own["verdict_steps"] == Outcome.BETTER]
        both = shown.groupby("method").filter(lambda rows: len(rows) == 2)
        order = both.groupby("method")[["gain", "bytes"]].mean()
        order = order.sort_values(["bytes", "gain"], ascending=[True, False])
        front = order[order["gain"] > order["gain"].cummax().shift(fill_value=-np.inf)]
        kind = f"{clients}, {'one model' if models == 'one' else 'mixed models'}"
        for method in front.index[::-1]:
            found = both[both["method"] == method].set_index("data")
            rows.append({"clients": kind, "method": method, **_both_data(found)})
    return rows


def _both_data(found: pd.DataFrame) -> Row:
    """Return a method's gains on each data set, its traffic and steps."""
    row: Row = {}
    for data, name in (("Fashion-MNIST", "fmnist"), ("CIFAR-10", "cifar10")):
        for part, end in itertools.product(("", "_steps"), ("", "_low", "_high")):
            row[f"{name}{part}{end}"] = found.loc[data, f"gain{part}{end}"]
    sizes = found["bytes"]
    return {
        **row,
        "bytes_low": sizes.min(),
        "bytes_high": sizes.max(),
        "steps": round(found["steps"].mean()),
    }


def counts() -> list[Row]:
    """Return in how many tuned comparisons each method has each verdict."""
    return [
        {"kind": kind, "method": method, "comparisons": found.total(), **_outcomes(found)}
        for kind, effects in (("equal steps", over_equal_steps), ("fine-tuned", fine_tuned))
        for method, found in _counted(map(effects, SPLITS.values()))
    ]


def fine_tuned(name: str) -> dict[str, Effect]:
    """Return the gain of each fine-tuned method over a fine-tuned `local`."""
    return effects(f"{FINE_TUNED}-{name}")


def _counted(comparisons: Iterable[Mapping[str, Effect]]) -> list[tuple[str, Counter[Outcome]]]:
    """Return the outcomes by method, those that are better most often first."""
    found: dict[str, Counter[Outcome]] = {}
    for method, effect in itertools.chain(*(one.items() for one in comparisons)):
        found.setdefault(method, Counter())[effect.outcome] += 1

    def order(item: tuple[str, Counter[Outcome]]) -> tuple[float, int, str]:
        method, own = item
        return -own[Outcome.BETTER] / own.total(), -own.total(), method

    return sorted(found.items(), key=order)


def _outcomes(found: Counter[Outcome]) -> Row:
    return {str(outcome).replace(" ", "_"): found[outcome] for outcome in Outcome}


def ranks() -> list[Row]:
    """Return the methods across the tuned comparisons, each seed a unit."""
    rows = []
    for models in ("one", "mixed"):
        names = [name for split, name in SPLITS.items() if ("mixed" in split) == (models != "one")]
        found = across_of({name: compared(f"{TUNED}-{name}") for name in names}, per_seed=True)
        for method, row in found.table.iterrows():
            is_reference = method == REFERENCE
            rows.append(
                {
                    "models": models,
                    "method": method,
                    "rank": round(row["rank"], 4),
                    "gain": np.nan if is_reference else round(100 * row["gain"], 4),
                    "wins": "" if is_reference else f"{row['wins']:.0f} of {len(found.accuracies)}",
                    "p": np.nan if is_reference else float(f"{row['p_holm']:.6g}"),
                }
            )
    return rows


# ---- All other sets ------------------------------------------------------------------------


def sets() -> list[Row]:
    """Return the rows of all sets but the tuned comparisons, and what some runs measure more."""
    names = [
        name
        for name in set_names()
        if name
        not in (*ESTIMATORS, NEW_CLIENTS, *(f"{TUNED}-{split}" for split in SPLITS.values()))
    ]
    with ProcessPoolExecutor() as pool:
        return [row for rows in pool.map(_rows_of_set, names) for row in rows]


def _rows_of_set(name: str) -> list[Row]:
    groups = compared(name).groups.values()
    return [
        {"set": name, **row, **_measured(runs)}
        for row, runs in zip(set_rows(name), groups, strict=True)
    ]


def _measured(runs: Sequence[PublishedRun]) -> Row:
    """Return traffic in both directions, epsilons and validation accuracy."""
    kept = [run.kept for run in runs]
    validation = [one.get("validation_accuracy_mean", [np.nan])[-1] for one in kept]
    return {
        **{way: mean((run.summary[f"bytes_{way}"] for run in runs), 0) for way in ("up", "down")},
        **{name: max(one.get(name, np.nan) for one in kept) for name in ("epsilon", "dp_epsilon")},
        "validation": mean(100 * value for value in validation),
    }


def kinds() -> list[Row]:
    """Return the gain of the clients with each architecture, where they have several in turn."""
    rows = []
    for name in ESTIMATORS:
        comparison = compared(name)
        models = str(read_set(name)[0].settings["models"]).split(",")
        for model, (label, runs) in itertools.product(models, comparison.groups.items()):
            if label in comparison.references:
                continue
            rivals = [comparison.references.of(label, run.config["seed"]) for run in runs]
            reached, alone = (
                [_accuracy_with(model, models, run) for run in own] for own in (runs, rivals)
            )
            rows.append(
                {
                    "set": name,
                    "model": model.rpartition(":")[2],
                    "method": label,
                    "seeds": len(runs),
                    **mean_and_spread("local", 100 * np.array(alone)),
                    **mean_and_spread("accuracy", 100 * np.array(reached)),
                    **in_points("gain", effect_of(np.subtract(reached, alone))),
                    **makers(runs),
                }
            )
    return rows


def _accuracy_with(model: str, models: list[str], run: PublishedRun) -> float:
    """Return the mean accuracy of the clients with an architecture, after the last round."""
    return float(np.mean(run.kept["accuracy_of_clients"][models.index(model) :: len(models)]))


def new_clients() -> list[Row]:
    """Return what each method gives clients that join after the training."""
    comparison, rows = compared(NEW_CLIENTS), []
    for label, runs in comparison.groups.items():
        own = [pd.Series(run.kept["accuracy_of_new_clients"], dtype=float) for run in runs]
        seeds = [run.config["seed"] for run in runs]
        rivals = [comparison.references.of(label, seed) for seed in seeds]
        row = run_columns(label, runs, comparison.effects.get(label))
        gains: list[pd.Series] = [
            accuracies - pd.Series(rival.kept["accuracy_of_new_clients"], dtype=float)
            for accuracies, rival in zip(own, rivals, strict=True)
            if rival
        ]
        bytes_each = [
            (run.kept["new_bytes_up"] + run.kept["new_bytes_down"]) / len(accuracies)
            for run, accuracies in zip(runs, own, strict=True)
        ]
        better = sum(int((gain > 0).sum()) for gain in gains)
        rows.append(
            {
                "method": row["method"],
                "rounds": runs[0].settings["new-client-rounds"],
                "seeds": len(runs),
                "new": mean(100 * accuracies.mean() for accuracies in own),
                **in_points("new_gain", effect_of(gain.mean() for gain in gains)),
                "better_off": f"{better} of {sum(map(len, gains))}" if gains else "",
                **{key: row[key] for key in ("gain", "gain_low", "gain_high")},
                "bytes_each": mean(bytes_each, 0),
                **makers(runs),
            }
        )
    return rows


# ---- Safeguards ----------------------------------------------------------------------------


@functools.cache
def guarded(*names: str) -> Criterion:
    """Return the criterion of safeguards over some sets."""
    return criterion({name: compared(name) for name in names})


def safeguard() -> list[Row]:
    """Return what a safeguard gives, by set and method."""
    rows = []
    for name in GUARDED:
        for (_, method), own in guarded(name).table.iterrows():
            row = {"set": name, "method": method, "seeds": int(own["seeds"])}
            row["private"] = round(100 * own["private_accuracy"], 4)
            for ours, theirs in (("alone", "method"), ("guarded", "safeguarded")):
                for end in ("", "_low", "_high"):
                    row[f"{ours}{end}"] = round(100 * own[f"{theirs}{end}"], 4)
                row[f"{ours}_worse"] = round(100 * own[f"{theirs}_harmed"], 4)
            rows.append({**row, "weight": round(100 * own["safeguard_weight"], 4)})
    return rows


def safeguard_sides() -> list[Row]:
    """Return both sides of the criterion, over several sets and over each alone."""
    groups = {**SIDES, **{name: [name] for name in GUARDED}}
    rows = []
    for data, names in groups.items():
        found = guarded(*names)
        row: Row = {"data": data, "clients": len(found.clients)}
        estimates = {
            "alone_worse": found.harmed("method"),
            "guarded_worse": found.harmed(),
            "kept": found.kept(),
        }
        for name, one in estimates.items():
            for end, value in (("", one.value), ("_low", one.low), ("_high", one.high)):
                row[f"{name}{end}"] = round(100 * value, 4)
        losses = -100 * found.clients[["method_gain", "safeguarded_gain"]].min()
        rows.append(
            {
                **row,
                "alone_loss": round(losses.iloc[0], 4),
                "guarded_loss": round(losses.iloc[1], 4),
            }
        )
    return rows


def investigations() -> list[Row]:
    """Return a question and its answer a row, with the runs that it rests on."""
    rows = []
    for topic, questions in load_toml(INVESTIGATIONS, "investigations").items():
        for one in questions:
            runs = [run for name in one.get("sets", []) for run in read_set(name)]
            rows.append(
                {
                    "topic": topic,
                    "question": one["question"],
                    "runs": len(runs) or "",
                    "seeds": len({run.config["seed"] for run in runs}) or "",
                    "sets": " ".join(one.get("sets", [])),
                    "answer": re.sub(r"\{(.+?)\}", lambda m: phrase(m[1]), one["answer"]),
                }
            )
    return rows


# ---- Writing -------------------------------------------------------------------------------

MADE: dict[str, Callable[[], list[Row]]] = {
    "benchmark": benchmark,
    "answers": answers,
    "counts": counts,
    "ranks": ranks,
    "fresh": fresh,
    "sets": sets,
    "papers": paper_rows,
    "safeguard": safeguard,
    "safeguard-sides": safeguard_sides,
    "kinds": kinds,
    "new-clients": new_clients,
    "investigations": investigations,  # reads the others
}
"""The tables that are made from runs; the other files of the folder are written by hand."""


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Return rows as a table."""
    return pd.DataFrame(list(rows))


def write_table(name: str, folder: Path = TABLES) -> Path:
    """Make a table of `MADE` and write it."""
    path = folder / f"{name}.csv"
    read_table.cache_clear()
    frame(MADE[name]()).convert_dtypes().to_csv(path, index=False, lineterminator="\n")
    return path
