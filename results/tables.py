"""The tables of ``results/tables`` that are made from the published runs.

Accuracies are in percent and gains over `local` with the same seed in points. ``gain_low`` and
``gain_high`` are the 95% interval of a gain by Student's t over seeds.
"""

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd

import fedkd_flwr
from fedkd_flwr.analysis.across import across_of
from fedkd_flwr.analysis.columns import REFERENCE
from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.groups import client_accuracies
from fedkd_flwr.analysis.reference_runs import best_by_validation
from fedkd_flwr.analysis.safeguard_criterion import LOSSES, Criterion, criterion
from fedkd_flwr.analysis.significance import Effect, Outcome, effect_of, effects_of
from fedkd_flwr.config.toml_files import load_toml
from fedkd_flwr.models.registry import assign_models
from fedkd_flwr.runs import Run
from results.pages import TABLES, phrase, read_table
from results.published import (
    MOMENTS,
    PublishedRun,
    Row,
    accuracy,
    by_seed,
    chosen,
    compared,
    effects,
    effects_in,
    evaluations,
    gains,
    in_points,
    makers,
    mean,
    mean_and_spread,
    read_set,
    run_columns,
    set_names,
    steps_of,
    traffic,
)

RESULTS = Path(__file__).parent
SPLITS = {
    f"{data}{split}{'-mixed' if mixed else ''}": f"{data}{mixed}{end}"
    for data, mixed in itertools.product(("", "cifar10-"), ("", "mixed-"))
    for split, end in (("groups", "k-classes-grouped"), ("dirichlet", "dirichlet"))
}
"""The comparisons of the tuned benchmark, and how their sets' names end."""
ENDS = list(SPLITS.values())
TUNED, STEPS = "benchmark-tuned/retuned", "benchmark-tuned/controls-steps"
CURVE = "learning-curve/"
BY_ROUND = ("field/", "family/")
FINE_TUNED, FRESH = "benchmark-tuned/fine-tuned", "headlines/retuned"
ESTIMATORS = ("any-model/digits", "any-model/tumors", "any-model/tumors-nine-silos")
SIDES = {
    "safeguard": [f"safeguard/{end}" for end in ENDS],
    "retuned": [f"{TUNED}-{end}" for end in ENDS[:2]],
    "retuned-mixed": [f"{TUNED}-{end}" for end in ENDS[2:4]],
    "retuned-cifar10": [f"{TUNED}-{end}" for end in ENDS[4:]],
    "second-private-model": [f"safeguard/second-private-model-{end}" for end in ENDS[:4]],
}
"""Sets over which a safeguard's two sides are counted together."""
GUARDED = list(itertools.chain(*SIDES.values()))
OTHER_SIZES = (
    ", (a CNN|fixed cells|mixed|raw public images|all images|600 epochs|(matched|printed) split)$"
)
"""What ``papers.csv`` adds to the data of a paper's cell."""

SPLITS_OF_PERSFL = {
    "CIFAR-10 DS-1": "persfl/cifar10-ds1-small",
    "CIFAR-10 DS-2": "persfl/cifar10-ds2-small",
    "CIFAR-10 DS-3": "persfl/cifar10-ds3-small",
    "MNIST DS-1": "persfl/mnist-ds1-full",
    "MNIST DS-2": "persfl/mnist-ds2-small",
    "MNIST DS-3": "persfl/mnist-ds3-full",
}
PAIRS = {"MNIST DS-1": "persfl/mnist-ds1-pairs", "MNIST DS-2": "persfl/mnist-ds2-all"}
PAIRS |= {"MNIST DS-3": "persfl/mnist-ds3-pairs"}
PARTS = ("first half", "later", "last tenth", "last")
GROUPS = "fedkma/trained-groups"
LAMBDA_0 = "fedkma (absent=uniform, similarity-weight=0.0)"
SUPERNETS = (
    GROUPS, "fedkma/trained-drawn", "fedkma/figure-8", "fedkma/figure-8-drawn",
    "fedkma/tables-small",
)  # fmt: skip
"""Sets of the figures of papers; a teacher of the last tenth is not of the last round."""

ATTACKS = "robustness/digits"
INSIDERS = 2
"""Clients that attack in the runs on robustness, the first ones."""
PREDICTING = ("kt-pfl", "sim-pfl", "fedmd", "perfed-ckt")

# ---- Sets ----------------------------------------------------------------------------------


def set_rows(name: str) -> list[Row]:
    """Return the rows of a set, with traffic up and down, epsilons and validation accuracy."""
    rows = []
    for label, runs in compared(name).groups.items():
        last = [run.round_rows[-1] for run in runs]
        validated = [100 * row.get("validation_accuracy_mean", np.nan) for row in last]
        rows.append(
            {
                "set": name,
                **run_columns(label, runs, effects(name).get(label)),
                "up": traffic(runs, "up"),
                "down": traffic(runs, "down"),
                "epsilon": max(row.get("epsilon", np.nan) for row in last),
                "dp_epsilon": max(row.get("dp_epsilon_max", np.nan) for row in last),
                "validation": mean(validated),
            }
        )
    return rows


def sets() -> list[Row]:
    """Return the rows of all sets that no other table has."""
    tuned_sets = (f"{TUNED}-{end}" for end in ENDS)
    elsewhere = (*ESTIMATORS, "new-clients/fashion-mnist", ATTACKS, *tuned_sets)
    names = (name for name in set_names() if not name.startswith((CURVE, *BY_ROUND)))
    with ProcessPoolExecutor() as pool:
        found = pool.map(set_rows, [name for name in names if name not in elsewhere])
        return list(itertools.chain(*found))


def kinds() -> Iterator[Row]:
    """Yield the gain of the clients with each architecture."""
    for name in (*ESTIMATORS, "kt-pfl/table-1-mixed-models"):
        comparison, config = compared(name), read_set(name)[0].config
        clients = comparison.clients.dropna(subset="gain")
        models = config["models"].split(",")
        assigned = assign_models(models, config["model-assignment"], config["num-clients"])
        has = np.array(assigned)[clients["partition_id"].astype(int)]
        for model, label in itertools.product(models, comparison.effects):
            own = clients[(has == model) & (clients["method"] == label)].groupby("seed")
            means = own[["accuracy", "local_accuracy", "gain"]].mean()
            yield {
                "set": name,
                "model": model.rpartition(":")[2],
                "method": label,
                "seeds": len(means),
                **mean_and_spread("local", means["local_accuracy"]),
                **mean_and_spread("accuracy", means["accuracy"]),
                **in_points("gain", effect_of(means["gain"])),
                **makers(comparison.groups[label]),
            }


def papers() -> Iterator[Row]:
    """Yield published runs beside the figures of ``papers.csv``; `local` may have no figure."""
    for row in read_table("papers", RESULTS).dropna(subset="set").to_dict("records"):
        comparison, last = compared(row["set"]), row["round"]
        after = None if np.isnan(last) else int(last)
        runs, own = comparison.groups[row["label"]], gains(comparison, row["label"], after)
        ours = mean_and_spread("ours", [accuracy(run, after) for run in runs])
        later = {
            moment: mean(100 * accuracy(run, after, f"{moment}_") for run in runs)
            for moment in ("trained", "distilled")
        }
        yield {
            **{key: row[key] for key in ("paper", "table", "data", "method", "settings")},
            "seeds": len(runs),
            **ours,
            **later,
            **in_points("gain", effect_of(own) if own else None),
            "theirs": row["theirs"],
            "difference": round(ours["ours"] - row["theirs"], 4),
            **makers(runs),
        }


def with_phrases(text: str) -> str:
    """Return a text with the cells that its braces name."""
    return re.sub(r"\{(.+?)\}", lambda match: phrase(match[1]), text)


def items() -> Iterator[Row]:
    """Yield every table, figure and theorem of the papers; a table with how many cells were run."""
    rows = read_table("papers", RESULTS).fillna({"settings": "", "note": ""})
    named = rows["data"].str.replace(OTHER_SIZES, "", regex=True)
    cells = rows.assign(data=named).dropna(subset="theirs")
    for item in rows[rows["method"].isna()].to_dict("records"):
        own = cells[(cells["paper"] == item["paper"]) & (cells["table"] == item["table"])]
        of_paper, ran = (
            len(some.drop_duplicates(["data", "method", "settings"]))
            for some in (own, own.dropna(subset="set"))
        )
        yield {
            "paper": item["paper"],
            "item": item["table"],
            "shows": item["data"],
            "run": f"{ran} of {of_paper} cells" if of_paper else item["settings"],
            "result": with_phrases(item["note"]),
        }


def paper_figures() -> Iterator[Row]:
    """Yield what figures of the papers show, where a row of a set cannot."""
    return itertools.chain(teachers(), pairs(), supernets(), contrasts())


def teachers() -> Iterator[Row]:
    """Yield when PersFL's users find their optimal teacher, in shares of users (Fig. 2)."""
    for data, name in SPLITS_OF_PERSFL.items():
        runs = with_optimal_teacher(name)
        users = [run.also_measured["users"] for run in runs]
        last = runs[0].config["num-server-rounds"]
        rounds = np.concatenate([own["teacher_round"] for own in users])
        shares = np.histogram(rounds, [0, last / 2, 0.9 * last, last, np.inf])[0] / len(rounds)
        for part, share in zip(PARTS, shares, strict=True):
            figure = {"figure": "PersFL 2", "set": name, "data": data, "rounds": last}
            yield {**figure, "users": len(rounds), "part": part, "share": mean([100 * share])}


def pairs() -> Iterator[Row]:
    """Yield PersFL's mean test accuracy for each lambda and T (Figs. 6 to 8)."""
    for data, name in PAIRS.items():
        runs = with_optimal_teacher(name)
        found = pd.concat(pd.DataFrame(run.also_measured["pairs"]) for run in runs)
        for (weight, temperature), own in found.groupby(["lambda", "temperature"]):
            pair = {"pair": f"lambda {weight:g}", "temperature": temperature, "seeds": len(runs)}
            figure = {"figure": "PersFL 6 to 8", "set": name, "data": data}
            yield {**figure, **pair, **mean_and_spread("accuracy", list(own["accuracy"]))}


def with_optimal_teacher(name: str) -> list[PublishedRun]:
    """Return the runs of a set by PersFL as its paper has it."""
    runs = (run for run in read_set(name) if run.config["strategy"] == "persfl")
    return [run for run in runs if run.config["persfl.teacher"] == "optimal"]


def supernets() -> Iterator[Row]:
    """Yield both moments, the best and the worst client and M's contrast of FedKMA's runs.

    In Fig. 8, ``change`` is the difference to lambda = 0, where absent classes count as uniform.
    """
    for name in SUPERNETS:
        groups = compared(name).groups
        without = by_seed(groups.get(LAMBDA_0, []))
        for label, runs in groups.items():
            changes = [one - without[seed] for seed, one in by_seed(runs).items() if without]
            own, weights = run_columns(label, runs, effects(name).get(label)), of_groups(runs)
            columns = ("method", "settings", "seeds", "accuracy", "gain", "gain_low", "gain_high")
            yield {
                "figure": "FedKMA",
                "set": name,
                **{column: own[column] for column in columns},
                **in_points("change", effect_of(changes) if changes else None),
                "trained": mean(100 * accuracy(run, model="trained_") for run in runs),
                "best": mean(100 * client_accuracies(run).max() for run in runs),
                "worst": mean(100 * client_accuracies(run).min() for run in runs),
                "contrast": contrast(*weights[-1]) if weights else np.nan,
            }


def contrasts() -> Iterator[Row]:
    """Yield M within and across groups of clients by round (Fig. 7a)."""
    for label, runs in compared(GROUPS).groups.items():
        for server_round, (within, across) in enumerate(of_groups(runs), start=1):
            yield {
                "figure": "FedKMA 7",
                "set": GROUPS,
                "method": label,
                "seeds": len(runs),
                "round": server_round,
                "within": round(within, 4),
                "across": round(across, 4),
                "contrast": contrast(within, across),
            }


def of_groups(runs: Sequence[Run]) -> list[tuple[float, float]]:
    """Return the mean weight of M within and across groups, by round; nothing without groups."""
    measured = [getattr(run, "also_measured", {}).get("sharing") for run in runs]
    found = [one for one in measured if one]
    if runs[0].config["partition"] != "k-classes-grouped" or len(found) < len(measured):
        return []
    weights = np.mean(found, axis=0)
    clients = weights.shape[1]
    group = np.arange(clients) * runs[0].config["groups"] // clients
    alike = group[:, None] == group
    return [(float(own[alike].mean()), float(own[~alike].mean())) for own in weights]


def contrast(within: float, across: float) -> float:
    """Return how many times more weight M gives within groups; NaN if it gives none across."""
    return round(within / across, 4) if across else np.nan


# ---- The tuned benchmark -------------------------------------------------------------------


@functools.cache
def tuned(end: str) -> Comparison:
    """Return a tuned comparison with the best `local` by validation: 60 steps, or a longer one."""
    groups = {str(steps_of(runs)): runs for runs in locals_of(end)}
    best = groups[best_by_validation(REFERENCE, list(groups), groups)]
    others = [run for run in read_set(f"{TUNED}-{end}") if run.config["strategy"] != REFERENCE]
    return fedkd_flwr.compare([*others, *best])


def locals_of(end: str) -> list[list[Run]]:
    """Return the runs of `local` with each number of steps, the fewest first."""
    groups = [compared(f"{TUNED}-{end}").groups[REFERENCE]]
    return sorted([*groups, *compared(f"{STEPS}-{end}").groups.values()], key=steps_of)


@functools.cache
def over_best(end: str) -> dict[str, Effect]:
    """Return what each method of a tuned comparison gains over the best `local`."""
    return effects_in(tuned(end))


def benchmark() -> Iterator[Row]:
    """Yield the tuned comparisons, and `local` with each number of steps."""
    for split, end in SPLITS.items():
        best = by_seed(tuned(end).groups[REFERENCE])
        place = {
            "split": split,
            "data": "CIFAR-10" if "cifar10" in split else "Fashion-MNIST",
            "clients": "groups" if "groups" in split else "Dirichlet",
            "models": "mixed" if "mixed" in split else "one",
            "reference": f"{REFERENCE} ({steps_of(tuned(end).groups[REFERENCE]):.0f} steps)",
        }
        led = [own for (own, _), one in tuned(end).pairs.items() if one.outcome is Outcome.BETTER]
        for label, effect in over_best(end).items():
            row = run_columns(label, tuned(end).groups[label], effect)
            yield {**place, **row, "leads": led.count(label)}
        for runs in locals_of(end):
            own = by_seed(runs)
            over = None if own == best else effect_of([own[seed] - best[seed] for seed in own])
            row = run_columns(f"{REFERENCE} ({steps_of(runs):.0f} steps)", runs, over)
            yield {**place, **row, "p": np.nan, "verdict": ""}


def answers() -> Iterator[Row]:
    """Yield the methods to use, for each kind of clients, those with the largest gain first.

    They are better than the best `local` on both data sets, and no method with a larger mean gain
    has as little traffic. So the largest gain has the most traffic too.
    """
    table, columns = pd.DataFrame(benchmark()), {"Fashion-MNIST": "fmnist", "CIFAR-10": "cifar10"}
    for (clients, models), own in table.groupby(["clients", "models"], sort=False):
        shown = own[own["verdict"] == Outcome.BETTER]
        both = shown.groupby("method").filter(lambda rows: len(rows) == 2)
        order = both.groupby("method")[["gain", "bytes"]].mean()
        order = order.sort_values(["bytes", "gain"], ascending=[True, False])
        front = order[order["gain"] > order["gain"].cummax().shift(fill_value=-np.inf)]
        for method in front.index[::-1]:
            found = both[both["method"] == method].set_index("data")
            kind = f"{clients}, {'one model' if models == 'one' else 'mixed models'}"
            row = {"clients": kind, "method": method}
            for data, column in columns.items():
                gain = found.filter(regex="^gain").loc[data]
                row |= gain.rename(lambda name, to=column: name.replace("gain", to)).to_dict()
            low, high = found["bytes"].min(), found["bytes"].max()
            yield {**row, "bytes_low": low, "bytes_high": high, "steps": mean(found["steps"], 0)}


def counts() -> pd.DataFrame:
    """Return in how many tuned comparisons each method has each verdict, the best share first."""
    rows = [
        {"kind": kind, "method": method, "outcome": str(effect.outcome).replace(" ", "_")}
        for end in ENDS
        for kind, own in (
            ("tuned", over_best(end)),
            ("fine-tuned", effects(f"{FINE_TUNED}-{end}")),
        )
        for method, effect in own.items()
    ]
    table = pd.DataFrame(rows).value_counts().unstack(fill_value=0)
    table.insert(0, "comparisons", table.sum(axis=1))
    table["share"] = table["better"] / table["comparisons"]
    order = ["kind", "share", "comparisons", "method"]
    ascending = [True, False, False, True]
    return table.sort_values(order, ascending=ascending).drop(columns="share").reset_index()


def ranks() -> Iterator[Row]:
    """Yield the methods across the tuned comparisons, each seed a unit."""
    for models in ("one", "mixed"):
        ends = [end for split, end in SPLITS.items() if ("mixed" in split) == (models == "mixed")]
        found = across_of({end: tuned(end) for end in ends}, per_seed=True)
        for method, row in found.table.iterrows():
            own = {"models": models, "method": method, "rank": round(row["rank"], 4)}
            if method != REFERENCE:
                own["gain"] = round(100 * row["gain"], 4)
                own["wins"] = f"{row['wins']:.0f} of {len(found.gains)}"
                own["p"] = float(f"{row['p_holm']:.6g}")
            yield own


def fresh() -> Iterator[Row]:
    """Yield the tuned methods that were run again on fresh seeds, over `local` with 60 steps."""
    for split, end in SPLITS.items():
        before, after = effects(f"{TUNED}-{end}"), effects(f"{FRESH}-{end}")
        for method in sorted(after, key=lambda method: -before[method].gain):
            old, new = before[method], after[method]
            yield {
                "split": split,
                "method": method,
                **in_points("before", old),
                **in_points("fresh", new),
                "verdict_before": str(old.outcome),
                "verdict_fresh": str(new.outcome),
                "same": "yes" if old.outcome == new.outcome else "no",
            }


# ---- The learning curve --------------------------------------------------------------------


def learning_curve() -> Iterator[Row]:
    """Yield the methods of each split by training images of a client."""
    names = [name.rpartition("-") for name in set_names() if name.startswith(CURVE)]
    for place, _, images in sorted(names, key=lambda one: (one[0], int(one[2]))):
        for row in at_best_rounds(f"{place}-{images}"):
            yield {"split": place.removeprefix(CURVE), "images": int(images), **row}


def best_rounds() -> Iterator[Row]:
    """Yield the methods of the other sets for which validation data choose round and moment."""
    for name in set_names():
        if name.startswith(BY_ROUND):
            for row in at_best_rounds(name):
                yield {"set": name, **row}


def at_best_rounds(name: str) -> Iterator[Row]:
    """Yield the methods of a set at the best round and moment by validation.

    Gains are over `local`, at its own best round. Its run with another order of batches is a method
    without effect. Where clients distill, two rows have one of the moments, without a verdict.
    Beside it stand the last round and the best round by *test* accuracy.
    """
    groups, (alone,) = compared(name).groups, compared(name).references.labels
    found = {
        (label, moment): {run.config["seed"]: evaluations(run, WHEN[moment]) for run in runs}
        for label, runs in groups.items()
        for moment in (["best"] if label == alone else moments_of(runs))
    }
    best = {key: {seed: chosen(one) for seed, one in own.items()} for key, own in found.items()}
    before = best[alone, "best"]
    over = {
        key: [accuracy - before[seed] for seed, accuracy in own.items()]
        for key, own in best.items()
        if key[0] != alone
    }
    tested = effects_of({label: own for (label, at), own in over.items() if at == "best"})
    for (label, moment), own in {(alone, "best"): [], **over}.items():
        runs, effect = groups[label], tested.get(label) if moment == "best" else effect_of(own)
        rounds = found[label, moment].values()
        row = run_columns(label, runs, effect)
        row |= mean_and_spread("accuracy", list(best[label, moment].values()))
        row |= mean_and_spread(
            "last", [chosen(one[one["round"] == one["round"].max()]) for one in rounds]
        )
        row |= mean_and_spread("best_test", [one["accuracy"].max() for one in rounds])
        row |= {} if moment == "best" else {"p": np.nan, "verdict": ""}
        yield {"moment": moment, **row}


WHEN = {"best": tuple(MOMENTS), "trained": ("own",), "distilled": ("distilled",)}
"""Moments of a round at which clients that distill are evaluated."""


def moments_of(runs: Sequence[Run]) -> list[str]:
    """Return the moments of `WHEN` that have a row."""
    return list(WHEN) if "distilled_accuracy_mean" in runs[0].round_rows[-1] else ["best"]


# ---- Safeguards ----------------------------------------------------------------------------


@functools.cache
def guarded(*names: str) -> Criterion:
    """Return the criterion of safeguards over some sets."""
    return criterion({name: compared(name).clients for name in names})


def safeguard() -> pd.DataFrame:
    """Return what a safeguard gives, by set and method."""
    names = {"private_accuracy": "private", "safeguard_weight": "weight"}
    for one, other in (("method", "alone"), ("safeguarded", "guarded")):
        ends = ("", "_low", "_high", *(f"_loses_{points}" for points in LOSSES))
        names |= {f"{one}{end}": f"{other}{end}" for end in ends}
    table = pd.concat([guarded(name).table for name in GUARDED]).rename_axis(["set", "method"])
    names |= {"harmed": "guarded_worse"}
    shares = (100 * table[list(names)]).round(4).rename(columns=names)
    return pd.concat([table["seeds"].astype(int), shares], axis=1).reset_index()


def safeguard_sides() -> Iterator[Row]:
    """Yield who loses and both sides of the criterion, over several sets and over each alone."""
    for data, names in {**SIDES, **{name: [name] for name in GUARDED}}.items():
        found = guarded(*names)
        row: Row = {"data": data, "clients": len(found.clients)}
        sides = {
            f"{name}_loses_{points}": found.losing(points, whose)
            for points, (name, whose) in itertools.product(
                LOSSES, (("alone", "method"), ("guarded", "safeguarded"))
            )
        }
        sides |= {"guarded_worse": found.harmed(), "kept": found.kept()}
        for name, one in sides.items():
            values = {name: one.value, f"{name}_low": one.low, f"{name}_high": one.high}
            row |= {column: round(100 * value, 4) for column, value in values.items()}
        for name, whose in (("alone_loss", "method"), ("guarded_loss", "safeguarded")):
            row[name] = round(-100 * found.clients[f"{whose}_gain"].min(), 4)
        yield row


# ---- Attacks -------------------------------------------------------------------------------


def robustness() -> Iterator[Row]:
    """Yield the accuracy of the clients that never attack, without and with two insiders."""
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    runs = sorted(read_set(ATTACKS), key=lambda run: run.config["seed"])
    for run in runs:
        clients = run.last_evaluations.reset_index()
        others = clients[clients["partition_id"] >= INSIDERS]
        _, attacked, name = run.config["strategy"].rpartition(":")
        key = name.replace("_", "-"), defense_of(run)
        found[key]["attacked" if attacked else "honest"].append(others["accuracy"].mean())
    for (method, defense), own in found.items():
        honest, attacked = own["honest"], own["attacked"]
        stopped = len(honest) - len(attacked) if method != REFERENCE else 0
        if stopped:
            attacked = []
        yield {
            "method": method,
            "defense": defense,
            "seeds": len(honest),
            **mean_and_spread("honest", honest),
            **(mean_and_spread("attacked", attacked) if attacked else {}),
            "stopped": stopped,
            **in_points("change", effect_of(np.subtract(attacked, honest)) if attacked else None),
            **makers(runs),
        }


def defense_of(run: Run) -> str:
    """Return the mixing of a run, or what bounds the updates that a plain mean gets."""
    config = run.config
    of_predictions = config["strategy"].rpartition(":")[2].replace("_", "-") in PREDICTING
    mixing = config["soft-predictions.mixing" if of_predictions else "mixing"]
    if of_predictions or mixing != "mean":
        return str(mixing)
    return f"mean, update-cap {config['update-cap']:g}" if config["update-cap"] else "mean, no cap"


# ---- Investigations, and writing ----------------------------------------------------------


def investigations() -> Iterator[Row]:
    """Yield a question and its answer a row, with the runs that it rests on."""
    for topic, questions in load_toml(RESULTS / "investigations.toml", "investigations").items():
        for one in questions:
            runs = [run for name in one.get("sets", []) for run in read_set(name)]
            yield {
                "topic": topic,
                "question": one["question"],
                "runs": len(runs) or "",
                "seeds": len({run.config["seed"] for run in runs}) or "",
                "sets": " ".join(one.get("sets", [])),
                "answer": with_phrases(one["answer"]),
            }


MADE: dict[str, Callable[[], Iterable[Row] | pd.DataFrame]] = {
    table.__name__.replace("_", "-"): table
    for table in (
        benchmark, answers, counts, ranks, learning_curve, best_rounds, fresh, sets, papers,
        paper_figures, safeguard, safeguard_sides, kinds, robustness, items, investigations,
    )
}  # fmt: skip
"""The tables that are made from runs, the last two from the others; those by hand have a source."""


def write_table(name: str, folder: Path = TABLES) -> Path:
    """Make a table of `MADE` and write it."""
    path = folder / f"{name}.csv"
    read_table.cache_clear()
    pd.DataFrame(MADE[name]()).convert_dtypes().to_csv(path, index=False, lineterminator="\n")
    return path
