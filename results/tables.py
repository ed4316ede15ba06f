"""The tables of ``results/tables`` that are made from the published runs.

Accuracies are in percent and gains over `local` with the same seed in points, both with four
decimals. ``gain_low`` and ``gain_high`` are the 95% interval of a gain by Student's t over seeds.
"""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    groups_of,
    in_points,
    makers,
    mean,
    mean_and_spread,
    read_set,
    reference_of,
    set_names,
)

INVESTIGATIONS = Path(__file__).parent / "investigations.toml"
SPLITS = {
    f"{data}{split}{'-mixed' if mixed else ''}": f"{data}{mixed}{end}"
    for data, mixed in itertools.product(("", "cifar10-"), ("", "mixed-"))
    for split, end in (("groups", "k-classes-grouped"), ("dirichlet", "dirichlet"))
}
"""The comparisons of the tuned benchmark, and how their sets' names end."""
TUNED, STEPS = "benchmark-tuned/retuned", "benchmark-tuned/controls-steps"
FINE_TUNED, FRESH = "benchmark-tuned/fine-tuned", "headlines/retuned"
ESTIMATORS = ("any-model/digits", "any-model/tumors", "any-model/tumors-nine-silos")
NEW_CLIENTS = "new-clients/fashion-mnist"
_ENDS = list(SPLITS.values())
SIDES = {
    "safeguard": [f"safeguard/{end}" for end in _ENDS],
    "retuned": [f"{TUNED}-{end}" for end in _ENDS[:2]],
    "retuned-mixed": [f"{TUNED}-{end}" for end in _ENDS[2:4]],
    "retuned-cifar10": [f"{TUNED}-{end}" for end in _ENDS[4:]],
    "second-private-model": [f"safeguard/second-private-model-{end}" for end in _ENDS[:4]],
}
"""Sets over which a safeguard's two sides are counted together."""

Row = dict[str, Any]

# ---- Sets ----------------------------------------------------------------------------------


def run_columns(label: str, runs: Sequence[PublishedRun], effect: Effect | None) -> Row:
    """Return the columns that every table of runs has; see `Comparison.groups` for the label."""
    method, _, settings = label.partition(" (")
    return {
        "method": method,
        "settings": settings.removesuffix(")"),
        "seeds": len(runs),
        **mean_and_spread("accuracy", [100 * run.accuracies[-1] for run in runs]),
        **in_points("gain", effect),
        "p": float(f"{effect.p_holm:.6g}") if effect else np.nan,
        "verdict": str(effect.outcome) if effect and effect.seeds else "",
        "steps": steps_of(runs),
        "bytes": mean(
            (run.kept.get("bytes_up", np.nan) + run.kept.get("bytes_down", np.nan) for run in runs),
            0,
        ),
        **makers(runs),
    }


def set_rows(name: str) -> list[Row]:
    """Return the rows of a set, the best method first."""
    groups = groups_of(compared(name)).items()
    return [run_columns(label, runs, effects(name).get(label)) for label, runs in groups]


def steps_of(runs: Iterable[PublishedRun]) -> float:
    """Return the gradient steps of the mean client without a safeguard's private model's.

    A private model takes the steps of `local`. Accuracies are of the method's model alone.
    """
    taken = []
    for run in runs:
        of_private = run.settings["local-iterations"] * run.settings["num-server-rounds"]
        has_private = run.settings["safeguard"] != "none" and run.config["strategy"] != REFERENCE
        taken.append(steps_of_a_client(run) - (of_private if has_private else 0))
    return mean(taken, 0)


def sets() -> list[Row]:
    """Return the rows of all sets but the tuned comparisons."""
    elsewhere = {*ESTIMATORS, NEW_CLIENTS, *(f"{TUNED}-{end}" for end in _ENDS)}
    with ProcessPoolExecutor() as pool:
        found = pool.map(_measured_rows, (name for name in set_names() if name not in elsewhere))
        return [row for rows in found for row in rows]


def _measured_rows(name: str) -> list[Row]:
    """Return the rows of a set with traffic up and down, epsilons and validation accuracy."""
    rows = []
    for row, runs in zip(set_rows(name), groups_of(compared(name)).values(), strict=True):
        up, down = (
            mean((run.kept.get(f"bytes_{way}", np.nan) for run in runs), 0)
            for way in ("up", "down")
        )
        epsilons = {n: max(r.kept.get(n, np.nan) for r in runs) for n in ("epsilon", "dp_epsilon")}
        last = [run.kept.get("validation_accuracy_mean", [np.nan])[-1] for run in runs]
        validation = mean(100 * value for value in last)
        rows.append(
            {"set": name, **row, "up": up, "down": down, **epsilons, "validation": validation}
        )
    return rows


def kinds() -> Iterator[Row]:
    """Yield the gain of the clients with each architecture, where they have several in turn."""
    for name in ESTIMATORS:
        comparison = compared(name)
        models = str(read_set(name)[0].settings["models"]).split(",")
        tested = {k: v for k, v in groups_of(comparison).items() if k not in comparison.references}
        for (place, model), (label, runs) in itertools.product(enumerate(models), tested.items()):
            pairs = [(run, reference_of(comparison, label, run)) for run in runs]
            reached, alone = np.array(
                [
                    [
                        np.mean(one.kept["accuracy_of_clients"][place :: len(models)])
                        for one in pair
                        if one
                    ]
                    for pair in pairs
                ]
            ).T
            yield {
                "set": name,
                "model": model.rpartition(":")[2],
                "method": label,
                "seeds": len(runs),
                **mean_and_spread("local", 100 * alone),
                **mean_and_spread("accuracy", 100 * reached),
                **in_points("gain", effect_of(reached - alone)),
                **makers(runs),
            }


def new_clients() -> Iterator[Row]:
    """Yield what each method gives clients that join after the training."""
    comparison = compared(NEW_CLIENTS)
    table = comparison.results.pivot(index="method", columns="seed", values="new_accuracy")
    reached = {str(label): np.array(table.loc[label], dtype=float) for label in table.index}
    better = comparison.results.groupby("method", sort=False)["new_beats_local"].mean()
    for row, (label, runs) in zip(
        set_rows(NEW_CLIENTS), groups_of(comparison).items(), strict=True
    ):
        reference = comparison.references.setting_for(label)
        gain = effect_of(reached[label] - reached[reference]) if reference else None
        new = len(runs[0].kept["accuracy_of_new_clients"])
        traffic = [(run.kept["new_bytes_up"] + run.kept["new_bytes_down"]) / new for run in runs]
        count = new * len(runs)
        yield {
            "method": row["method"],
            "rounds": runs[0].settings["new-client-rounds"],
            "seeds": len(runs),
            "new": mean(100 * reached[label]),
            **in_points("new_gain", gain),
            "better_off": f"{better[label] * count:.0f} of {count}" if reference else "",
            **{key: row[key] for key in ("gain", "gain_low", "gain_high")},
            "bytes_each": mean(traffic, 0),
            **makers(runs),
        }


# ---- The tuned benchmark -------------------------------------------------------------------


def benchmark() -> Iterator[Row]:
    """Yield the tuned comparisons with gains at equal steps, and longer `local`."""
    for split, end in SPLITS.items():
        place = {
            "split": split,
            "data": "CIFAR-10" if "cifar10" in split else "Fashion-MNIST",
            "clients": "groups" if "groups" in split else "Dirichlet",
            "models": "mixed" if "mixed" in split else "one",
            "reference": REFERENCE,
        }
        pairs = compared(f"{TUNED}-{end}").pairs.items()
        led = Counter(own for (own, _), effect in pairs if effect.outcome is Outcome.BETTER)
        for row in set_rows(f"{TUNED}-{end}"):
            equal = over_equal_steps(end).get(row["method"])
            verdict = {"verdict_steps": str(equal.outcome) if equal else ""}
            gain = in_points("gain_steps", equal)
            yield {**place, **row, **gain, **verdict, "leads": led[row["method"]]}
        usual = by_seed(groups_of(compared(f"{TUNED}-{end}"))[REFERENCE])
        for runs in groups_of(compared(f"{STEPS}-{end}")).values():
            effect = effect_of([run.accuracies[-1] - usual[run.config["seed"]] for run in runs])
            row = run_columns(f"{REFERENCE} ({steps_of(runs):.0f} steps)", runs, effect)
            yield {**place, **row, "p": np.nan, "verdict": ""}


@functools.cache
def over_equal_steps(end: str) -> dict[str, Effect]:
    """Return the gain of each method over the shortest `local` that takes as many steps.

    Verdicts of methods with more steps than `local` are corrected for these methods; the others
    have the verdict of the tuned table. A method with more steps than any `local` is an error.
    """
    tuned, gains = groups_of(compared(f"{TUNED}-{end}")), {}
    longer = sorted(groups_of(compared(f"{STEPS}-{end}")).values(), key=steps_of)
    for label, runs in tuned.items():
        if (steps := steps_of(runs)) > steps_of(tuned[REFERENCE]):
            rival = by_seed(next(own for own in longer if steps_of(own) >= steps))
            gains[label] = [accuracy - rival[seed] for seed, accuracy in by_seed(runs).items()]
    return {**effects(f"{TUNED}-{end}"), **effects_of(gains)}


def answers() -> Iterator[Row]:
    """Yield the methods to use, for each kind of clients, those with the largest gain first.

    They are better than `local` with as many steps on both data sets, and no method with a larger
    mean gain has as little traffic. So the largest gain has the most traffic too.
    """
    table = pd.DataFrame(benchmark())
    for (clients, models), own in table.groupby(["clients", "models"], sort=False):
        shown = own[own["verdict_steps"] == Outcome.BETTER]
        both = shown.groupby("method").filter(lambda rows: len(rows) == 2)
        order = both.groupby("method")[["gain", "bytes"]].mean()
        order = order.sort_values(["bytes", "gain"], ascending=[True, False])
        front = order[order["gain"] > order["gain"].cummax().shift(fill_value=-np.inf)]
        kind = f"{clients}, {'one model' if models == 'one' else 'mixed models'}"
        for method in front.index[::-1]:
            found = both[both["method"] == method].set_index("data")
            row = {"clients": kind, "method": method}
            for data, name in (("Fashion-MNIST", "fmnist"), ("CIFAR-10", "cifar10")):
                for part, side in itertools.product(("", "_steps"), ("", "_low", "_high")):
                    row[f"{name}{part}{side}"] = found.loc[data, f"gain{part}{side}"]
            low, high = found["bytes"].min(), found["bytes"].max()
            steps = found["steps"].mean()
            yield {**row, "bytes_low": low, "bytes_high": high, "steps": round(steps)}


def counts() -> list[Row]:
    """Return in how many tuned comparisons each method has each verdict."""

    def fine_tuned(end: str) -> Mapping[str, Effect]:
        return effects(f"{FINE_TUNED}-{end}")

    rows = []
    for kind, effects_in in (("equal steps", over_equal_steps), ("fine-tuned", fine_tuned)):
        found: dict[str, Counter[Outcome]] = {}
        for method, effect in itertools.chain(*(effects_in(end).items() for end in _ENDS)):
            found.setdefault(method, Counter())[effect.outcome] += 1
        for method, own in found.items():
            outcomes = {str(one).replace(" ", "_"): own[one] for one in Outcome}
            rows.append({"kind": kind, "method": method, "comparisons": own.total(), **outcomes})

    def order(row: Row) -> tuple[str, float, int, str]:
        share = row["better"] / row["comparisons"]
        return row["kind"], -share, -row["comparisons"], row["method"]

    return sorted(rows, key=order)


def ranks() -> Iterator[Row]:
    """Yield the methods across the tuned comparisons, each seed a unit."""
    for models in ("one", "mixed"):
        ends = [end for split, end in SPLITS.items() if ("mixed" in split) == (models == "mixed")]
        found = across_of({end: compared(f"{TUNED}-{end}") for end in ends}, per_seed=True)
        for method, row in found.table.iterrows():
            own = {"models": models, "method": method, "rank": round(row["rank"], 4)}
            if method != REFERENCE:
                own["gain"] = round(100 * row["gain"], 4)
                own["wins"] = f"{row['wins']:.0f} of {len(found.accuracies)}"
                own["p"] = float(f"{row['p_holm']:.6g}")
            yield own


def fresh() -> Iterator[Row]:
    """Yield the tuned methods that were run again on fresh seeds, before and after."""
    for split, end in SPLITS.items():
        before, after = effects(f"{TUNED}-{end}"), effects(f"{FRESH}-{end}")
        for method in sorted(after, key=lambda method: -before[method].gain):
            old, new = before[method], after[method]
            row = {"split": split, "method": method, **in_points("before", old)}
            row |= {**in_points("fresh", new), "verdict_before": str(old.outcome)}
            same = "yes" if old.outcome == new.outcome else "no"
            yield {**row, "verdict_fresh": str(new.outcome), "same": same}


# ---- Safeguards ----------------------------------------------------------------------------


@functools.cache
def guarded(*names: str) -> Criterion:
    """Return the criterion of safeguards over some sets."""
    return criterion({name: compared(name).clients for name in names})


def safeguard() -> Iterator[Row]:
    """Yield what a safeguard gives, by set and method."""
    names = {"private_accuracy": "private", "safeguard_weight": "weight"}
    names |= {"method_harmed": "alone_worse", "safeguarded_harmed": "guarded_worse"}
    for one, other in (("method", "alone"), ("safeguarded", "guarded")):
        names |= {f"{one}{side}": f"{other}{side}" for side in ("", "_low", "_high")}
    for name in itertools.chain(*SIDES.values()):
        table = guarded(name).table
        for (_, method), row in zip(table.index.tolist(), table.to_dict("records"), strict=True):
            numbers = {new: round(100 * row[old], 4) for old, new in names.items()}
            yield {"set": name, "method": method, "seeds": int(row["seeds"]), **numbers}


def safeguard_sides() -> Iterator[Row]:
    """Yield both sides of the criterion, over several sets and over each alone."""
    alone = {name: [name] for name in itertools.chain(*SIDES.values())}
    for data, names in {**SIDES, **alone}.items():
        found = guarded(*names)
        row: Row = {"data": data, "clients": len(found.clients)}
        sides = {"alone_worse": found.harmed("method"), "guarded_worse": found.harmed()}
        for name, one in {**sides, "kept": found.kept()}.items():
            for end, value in (("", one.value), ("_low", one.low), ("_high", one.high)):
                row[f"{name}{end}"] = round(100 * value, 4)
        for name, whose in (("alone_loss", "method"), ("guarded_loss", "safeguarded")):
            row[name] = round(-100 * found.clients[f"{whose}_gain"].min(), 4)
        yield row


# ---- Investigations, and writing ----------------------------------------------------------


def investigations() -> Iterator[Row]:
    """Yield a question and its answer a row, with the runs that it rests on."""
    for topic, questions in load_toml(INVESTIGATIONS, "investigations").items():
        for one in questions:
            names = one.get("sets", [])
            runs = [run for name in names for run in read_set(name)]
            seeds = len({run.config["seed"] for run in runs})
            yield {
                "topic": topic,
                "question": one["question"],
                "runs": len(runs) or "",
                "seeds": seeds or "",
                "sets": " ".join(names),
                "answer": re.sub(r"\{(.+?)\}", lambda match: phrase(match[1]), one["answer"]),
            }


MADE: dict[str, Callable[[], Iterable[Row]]] = {
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


def write_table(name: str, folder: Path = TABLES) -> Path:
    """Make a table of `MADE` and write it."""
    path = folder / f"{name}.csv"
    read_table.cache_clear()
    pd.DataFrame(MADE[name]()).convert_dtypes().to_csv(path, index=False, lineterminator="\n")
    return path
