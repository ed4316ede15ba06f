"""PersFL's Tables 3 to 7 on MNIST from finished runs, next to the paper's numbers.

    python docs/results/persfl/publish_persfl.py RUNS

Adds every run under the folder RUNS to ``mnist.json``, next to this file, and replaces equal runs.
Then it draws figures of PersFL's runs with the preset's settings, and updates all tables. Runs
whose settings differ from a preset's are refused; use `publish_runs.py` for those.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import fedkd_flwr
from fedkd_flwr import Run
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.config import read_config
from fedkd_flwr.config_files import load_toml, read_toml
from fedkd_flwr.plots import plot_pairs, plot_surface, plot_teacher_rounds
from fedkd_flwr.plots.files import write_figures

HERE = Path(__file__).parent
SPLITS = {"k-classes": "DS-1", "dirichlet": "DS-2", "lognormal-two-classes": "DS-3"}
COLUMNS = [
    "accuracy", "global_accuracy", "teacher_accuracy", "lambda", "temperature", "teacher_round"
]  # fmt: skip
RUNS = "mnist.json"
"""The stored results of all runs, next to this file."""
IDENTITY = ("split", "samples", "method", "teacher", "rounds", "seed")
"""Values that distinguish runs, and their order in the file."""
FREE = ("strategy", "persfl.teacher", "max-samples", "num-server-rounds", "seed")
"""The settings of these values, except for the split."""
PRESETS = HERE.parents[2] / "conf" / "persfl"
NEAR = 0.01
"""Tolerance in accuracy within which Table 7 counts a method as converged."""


# ---- What is kept of a run -----------------------------------------------------------


def published(run: Run) -> dict[str, Any]:
    """Return the stored part of a run: the settings that distinguish it, and its results."""
    config = run.config
    clients = run.clients[run.clients["round"] == config["num-server-rounds"]]
    clients = clients.sort_values("partition_id").reindex(columns=COLUMNS).dropna(axis="columns")
    rounds = run.rounds.dropna(subset="validation_accuracy_mean")
    return {
        "split": SPLITS[config["partition"]],
        "method": config["strategy"],
        "teacher": config["persfl.teacher"],
        "samples": config["max-samples"],
        "seed": config["seed"],
        "rounds": config["num-server-rounds"],
        "evaluated": rounds["round"].tolist(),
        "validation_accuracy_mean": rounds["validation_accuracy_mean"].round(4).tolist(),
        "seconds": round(run.summary["seconds"], 1),
        "clients": clients.round(4).to_dict("list"),
        "pairs": published_pairs(run.table("pairs")),
    }


def published_pairs(pairs: pd.DataFrame) -> dict[str, Any]:
    """Return the grid of lambda and T, and the accuracies of each client (rows) for its pairs."""
    if pairs.empty:
        return {}
    by_client = pairs.groupby("partition_id")
    grid = by_client.get_group(pairs["partition_id"].min())
    return {
        **{name: grid[name].tolist() for name in ("lambda", "temperature")},
        **{
            name: [
                values.round(4).replace({np.nan: None}).tolist() for _, values in by_client[name]
            ]
            for name in ("validation_accuracy", "accuracy")
        },
    }


def preset_of(split: str) -> dict[str, Any]:
    """Return the settings of a split's preset."""
    return read_toml(PRESETS / f"mnist-{split.lower().replace('-', '')}.toml")


def require_preset(run: Run) -> None:
    """Check that a run differs from its split's preset only in the settings of `FREE`.

    Raises
    ------
    ValueError
        If it does not, with the settings in which it differs.
    """
    split = SPLITS.get(run.config["partition"])
    if split is None:
        raise ValueError(f"{run.path} has none of the splits {', '.join(SPLITS)}.")
    free = {name: run.config[name] for name in FREE}
    wanted = defining_settings(read_config({**preset_of(split), **free}).flat())
    own = defining_settings(run.config)
    others = sorted(name for name in own | wanted if own.get(name) != wanted.get(name))
    if others:
        raise ValueError(f"{run.path} differs from its preset in {', '.join(others)}.")


def write_runs(folder: Path) -> None:
    """Add all finished runs under a folder to ``mnist.json``, and write PersFL's figures."""
    found = [fedkd_flwr.load_run(file.parent) for file in sorted(folder.rglob("summary.json"))]
    for run in found:
        require_preset(run)
    runs = [*json.loads((HERE / RUNS).read_text()), *map(published, found)]
    kept = {tuple(run[name] for name in IDENTITY): run for run in runs}
    text = ",\n".join(json.dumps(kept[identity]) for identity in sorted(kept))
    (HERE / RUNS).write_text(f"[\n{text}\n]\n")
    for partition, split in SPLITS.items():
        runs = [run for run in found if is_plain(run) and run.config["partition"] == partition]
        if runs:
            stem = f"mnist-{split.lower().replace('-', '')}"
            figures = {
                f"{stem}-pairs": plot_pairs(runs),
                f"{stem}-surface": plot_surface(runs),
                f"{stem}-teacher-rounds": plot_teacher_rounds(runs),
            }
            write_figures(figures.items(), HERE)


def is_plain(run: Run) -> bool:
    """Return whether a run is PersFL with the preset's settings."""
    config = run.config
    variant = config["strategy"], config["persfl.teacher"], config["max-samples"]
    return variant == ("persfl", "optimal", 0)


# ---- Tables --------------------------------------------------------------------------


def read_runs() -> pd.DataFrame:
    """Return one row per run; ``accuracy`` and ``global_accuracy`` are lists over users."""
    runs = json.loads((HERE / RUNS).read_text())
    return pd.DataFrame([{**run, **run.pop("clients")} for run in runs])


def accuracy_rows(
    title: str, runs: pd.DataFrame, paper: Mapping[str, Any], column: str = "accuracy"
) -> Iterator[list[str]]:
    """Yield rounds, seeds, ours, the paper's and the difference for each split and its rounds."""
    for split, theirs, spread in zip(
        SPLITS.values(), paper["accuracy"], paper["spread"], strict=True
    ):
        of_split = runs[runs["split"] == split].dropna(subset=column)
        for rounds, own in of_split.groupby("rounds"):
            users = 100 * np.array(own[column].tolist())
            means = users.mean(axis=1)
            yield [
                split,
                title,
                f"{rounds}",
                f"{len(own)}",
                f"{with_deviation(means)} / {users.std(axis=1).mean():.1f}",
                f"{theirs} / {spread}",
                f"{means.mean() - theirs:+.1f}",
            ]


def choice_rows(runs: pd.DataFrame, paper: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the means of the users' choices, ours and the paper's, for each split with runs."""
    for position, split in enumerate(SPLITS.values()):
        own = runs[runs["split"] == split]
        if own.empty:
            continue
        cells = []
        for name in ("lambda", "temperature"):
            ours = np.array([np.mean(values) for values in own[name]])
            theirs = np.mean(paper[name][position])
            cells += [with_deviation(ours, 3), f"{theirs:.3f}", f"{ours.mean() - theirs:+.3f}"]
        of_ours = (np.concatenate(own[name].tolist()) for name in ("lambda", "temperature"))
        of_theirs = (np.array(paper[name][position]) for name in ("lambda", "temperature"))
        yield [split, f"{len(own)}", *cells, with_soft_loss(*of_ours), with_soft_loss(*of_theirs)]


def with_soft_loss(weights: NDArray[np.float64], temperatures: NDArray[np.float64]) -> str:
    """Return how many users chose lambda above 0, and their mean T: without, T has no effect."""
    chosen = weights > 0
    mean = f", T {temperatures[chosen].mean():.1f}" if chosen.any() else ""
    return f"{chosen.sum()} of {len(weights)}{mean}"


def round_rows(runs: pd.DataFrame, paper: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield rounds and rounds to convergence, for every split and method with runs."""
    for method, given in paper.items():
        for split, theirs in zip(SPLITS.values(), given, strict=True):
            of_split = runs[(runs["split"] == split) & (runs["method"] == method)]
            for rounds, own in of_split.groupby("rounds"):
                arrived = np.array([arrival(run) for run in own.to_dict("records")])
                cells = [f"`{method}`", f"{theirs}", f"{rounds}", with_deviation(arrived, 0)]
                yield [split, *cells]


def arrival(run: Mapping[str, Any]) -> int:
    """Return the first evaluated round within `NEAR` of the best on validation data.

    For PersFL, only the rounds of stage 1 count, because stage 2 has no communication.
    """
    is_last = np.array(run["evaluated"]) == run["rounds"]
    counted = ~is_last if run["method"].startswith("persfl") else np.ones_like(is_last)
    accuracy = np.array(run["validation_accuracy_mean"])[counted]
    return int(np.array(run["evaluated"])[counted][accuracy >= accuracy.max() - NEAR][0])


def size_rows(runs: pd.DataFrame) -> Iterator[list[str]]:
    """Yield one row per number of samples in DS-2: PersFL, its stage 1, the users' choices."""
    for samples, own in runs.groupby(runs["samples"].replace(0, 70_000)):
        cells = []
        for column in ("accuracy", "global_accuracy"):
            users = 100 * np.array(own[column].tolist())
            cells.append(f"{with_deviation(users.mean(axis=1))} / {users.std(axis=1).mean():.1f}")
        for name in ("lambda", "temperature"):
            cells.append(with_deviation(np.array([np.mean(chosen) for chosen in own[name]]), 2))
        yield [f"{samples:,}", f"{len(own)}", *cells]


def the_papers(paper: Mapping[str, Any]) -> list[str]:
    """Return the paper's row for DS-2, which does not say how many samples there were."""
    cells = [
        f"{paper['table3'][name]['accuracy'][1]} / {paper['table3'][name]['spread'][1]}"
        for name in ("persfl", "fedavg")
    ]
    chosen = [f"{np.mean(paper['table5'][name][1]):.2f}" for name in ("lambda", "temperature")]
    return ["the paper", "5", *cells, *chosen]


def with_deviation(values: NDArray[np.float64], digits: int = 1) -> str:
    """Return the mean over seeds, with the standard deviation if there are several."""
    deviation = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{deviation}"


def table(headings: str, rows: Iterable[list[str]]) -> str:
    """Return a Markdown table, its rows by their first cell."""
    names = headings.split(", ")
    lines = [names, ["---"] * len(names), *sorted(rows, key=lambda row: row[0])]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# ---- The tables, by `check_tables.py` ------------------------------------------------

ACCURACIES = "split, method, rounds, seeds, ours, paper, difference"
METHODS = ("persfl", "persfl-gd", "fedavg", "fedper", "pfedme", "per-fedavg")


def papers_tables() -> dict[str, Any]:
    """Return the paper's numbers."""
    return dict(load_toml(HERE / "paper.toml", "paper's tables"))


def variants() -> dict[str, pd.DataFrame]:
    """Return the runs on all samples by method; PersFL's have the optimal teacher."""
    runs = read_runs()
    runs = runs[(runs["samples"] == 0) & (runs["teacher"] == "optimal")]
    return {name: runs[runs["method"] == name] for name in METHODS}


def table_3(*splits: str) -> str:
    """Return Table 3: personalization methods. Stage 1 of PersFL is FedAvg.

    Parameters
    ----------
    *splits : str
        ``DS-1``, ``DS-2``, ``DS-3``; all if none is named.
    """
    paper, found = papers_tables()["table3"], variants()
    stage_1 = accuracy_rows(
        "stage 1 of `persfl`, which is FedAvg", found["persfl"], paper["fedavg"], "global_accuracy"
    )
    rows = [
        row
        for name, theirs in paper.items()
        for row in accuracy_rows(f"`{name}`", found[name], theirs)
    ]
    return table(ACCURACIES, [row for row in [*stage_1, *rows] if not splits or row[0] in splits])


def table_4() -> str:
    """Return Table 4: the teacher of stage 2."""
    paper, runs = papers_tables()["table4"], read_runs()
    persfl = runs[(runs["samples"] == 0) & (runs["method"] == "persfl")]
    rows = [
        row
        for name, theirs in paper.items()
        for row in accuracy_rows(name, persfl[persfl["teacher"] == name], theirs)
    ]
    return table(ACCURACIES.replace("method", "teacher"), rows)


def table_5() -> str:
    """Return Table 5: the pairs that users choose, mean over users."""
    return table(
        "split, seeds, lambda, paper's lambda, difference, T, paper's T, difference, "
        "with lambda > 0, paper's with lambda > 0",
        choice_rows(variants()["persfl"], papers_tables()["table5"]),
    )


def table_6() -> str:
    """Return Table 6: the soft loss."""
    paper, found = papers_tables()["table6"], variants()
    rows = [
        row
        for name, theirs in paper.items()
        for row in accuracy_rows(f"`{name}`", found[name], theirs)
    ]
    return table(ACCURACIES, rows)


def table_7() -> str:
    """Return Table 7: rounds, and rounds to convergence."""
    return table(
        "split, method, paper's rounds, our rounds, within one point of its best after",
        round_rows(pd.concat(variants().values()), papers_tables()["table7"]),
    )


def sizes() -> str:
    """Return one row per number of samples in DS-2, and the paper's row."""
    runs = read_runs()
    runs = runs[(runs["split"] == "DS-2") & (runs["teacher"] == "optimal")]
    own = runs[runs["method"] == "persfl"]
    headings = "samples, seeds, `persfl`, stage 1 (FedAvg), lambda, T"
    rows = sorted(size_rows(own), key=lambda row: int(row[0].replace(",", "")))
    return table(headings, []) + "".join(
        f"| {' | '.join(row)} |\n" for row in [*rows, the_papers(papers_tables())]
    )


def earlier() -> str:
    """Return earlier runs, with weighted averages and other client sizes in DS-3."""
    runs = json.loads((HERE / "mnist-weighted.json").read_text())
    rows = []
    for split, own in runs.items():
        means = (np.array([run[f"{name}_mean"] for run in own]) for name in ("persfl", "fedavg"))
        chosen = np.array([np.mean([user["lambda"] for user in run["clients"]]) for run in own])
        rows.append([split, f"{len(own)}", *map(with_deviation, means), with_deviation(chosen, 2)])
    return table("split, seeds, `persfl`, FedAvg, lambda", rows)


def what_is_run() -> str:
    """Return how many seeds of each variant have been run on each split."""
    runs, found = read_runs(), variants()
    persfl = runs[(runs["samples"] == 0) & (runs["method"] == "persfl")]
    kinds = {
        "stage 1 and `persfl` (Tables 3 to 7)": found["persfl"],
        "`persfl` with the last model as teacher (4)": persfl[persfl["teacher"] == "last"],
        "`persfl-gd` (6)": found["persfl-gd"],
        **{f"`{name}` (3, 7)": found[name] for name in METHODS[2:]},
    }
    counts = {
        kind: [own.loc[own["split"] == split, "seed"].nunique() for split in SPLITS.values()]
        for kind, own in kinds.items()
    }
    rows = [[kind, *(str(n) if n else "not run" for n in row)] for kind, row in counts.items()]
    names = ["seeds of", *SPLITS.values()]
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def validation_at(split: str, server_round: str) -> str:
    """Return the mean validation accuracy of stage 1 of `persfl` at a round."""
    runs = variants()["persfl"]
    own = runs[runs["split"] == split].to_dict("records")
    values = [
        run["validation_accuracy_mean"][run["evaluated"].index(int(server_round))] for run in own
    ]
    return f"{100 * np.mean(values):.1f}"


def difference(split: str, method: str) -> str:
    """Return ours minus the paper's in Table 3; ``stage-1`` is compared with FedAvg."""
    theirs = papers(split, "fedavg" if method == "stage-1" else method)
    return f"{float(ours(split, method)) - float(theirs):+.1f}"


def over(split: str, method: str, other: str) -> str:
    """Return our gain in Table 3 over another method, in points."""
    return f"{float(ours(split, method)) - float(ours(split, other)):+.1f}"


def of_seed(split: str, method: str, rounds: str, seed: str) -> str:
    """Return our accuracy of Table 3 in one run."""
    runs = variants()[method]
    is_asked = (runs["rounds"] == int(rounds)) & (runs["seed"] == int(seed))
    (run,) = runs[is_asked & (runs["split"] == split)].to_dict("records")
    return f"{100 * np.mean(run['accuracy']):.1f}"


def ours(split: str, method: str, rounds: str = "") -> str:
    """Return our mean accuracy of Table 3; ``stage-1`` is the first stage of `persfl`.

    Parameters
    ----------
    split, method : str
        As the table names them.
    rounds : str, optional
        How many; those that most seeds were run with if left out.
    """
    is_stage_1 = method == "stage-1"
    runs = variants()["persfl" if is_stage_1 else method]
    own = runs[runs["split"] == split]
    if own.empty:
        return "not run"
    own = own[own["rounds"] == (int(rounds) if rounds else own["rounds"].mode().iloc[0])]
    return f"{100 * np.mean(own['global_accuracy' if is_stage_1 else 'accuracy'].tolist()):.1f}"


def papers(split: str, method: str) -> str:
    """Return the paper's accuracy of Table 3."""
    position = list(SPLITS.values()).index(split)
    return f"{papers_tables()['table3'][method]['accuracy'][position]}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_runs(Path(sys.argv[1]))
    subprocess.run([sys.executable, HERE.parent / "check_tables.py", "--write"], check=True)
