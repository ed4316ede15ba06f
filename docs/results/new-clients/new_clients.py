"""The table of new clients, and single values of it for sentences.

Files are those of `publish_runs.py`. A method is given as in `values.py`, for example
``kt-pfl,new-client-rounds=2``. It is compared with `local` with the same number of rounds.
"""

from pathlib import Path

import pandas as pd
from publish_runs import PublishedRun, read_published
from tables import REFERENCE, better, course_of, has_settings, in_points, markdown, reference

from fedkd_flwr.analysis.rendering import in_bytes

ALL_ROUNDS = 0
"""The `new-client-rounds` that give a new client as many rounds as the training had."""


def table(file: Path) -> str:
    """Return one row per method, the best for new clients first, fewer rounds last."""
    groups = _results(file).groupby(["rounds", "strategy"])
    means = groups["gain"].mean().reset_index()
    order = means.sort_values(["rounds", "gain"], ascending=[True, False])
    headings = ["method", "new clients, by seed", f"over `{REFERENCE}`, by seed", "better off"]
    bold = better({key: own["gain"].to_numpy() for key, own in groups if key[1] != REFERENCE})
    rows = []
    for rounds, strategy in zip(order["rounds"], order["strategy"], strict=True):
        own = groups.get_group((rounds, strategy))
        is_reference = strategy == REFERENCE
        gains = in_points(own["gain"])
        rows.append(
            [
                f"`{strategy}`" + (f", {rounds} rounds" if rounds != ALL_ROUNDS else ""),
                ", ".join(f"{100 * value:.1f}" for value in own["accuracy"]),
                "" if is_reference else f"**{gains}**" if (rounds, strategy) in bold else gains,
                "" if is_reference else f"{own['better'].sum()} of {own['clients'].sum()}",
                "" if is_reference else in_points([own["gain_in_training"].mean()]),
                in_bytes(own["bytes"].mean()),
            ]
        )
    return markdown([*headings, "gain in training:", "exchanged:"], rows)


def gain(file: Path, method: str) -> str:
    """Return the mean gain of new clients over `local` in points."""
    return in_points([_of(file, method)["gain"].mean()])


def distance(file: Path, method: str) -> str:
    """Return the absolute gain, for sentences that state its direction."""
    return f"{100 * abs(_of(file, method)['gain'].mean()):.1f}"


def gain_in_training(file: Path, method: str) -> str:
    """Return the mean gain over `local` of the clients in training, in points."""
    return in_points([_of(file, method)["gain_in_training"].mean()])


def number(file: Path) -> str:
    """Return the number of new clients over all seeds."""
    results = _results(file)
    return str(results[results["strategy"] == REFERENCE].groupby("rounds")["clients"].sum().max())


def _of(file: Path, method: str) -> pd.DataFrame:
    strategy, *pairs = method.split(",")
    conditions = dict(pair.split("=", 1) for pair in pairs)
    runs = read_published(file)
    chosen = [r for r in runs if r.config["strategy"] == strategy and has_settings(r, conditions)]
    if len({run.config["seed"] for run in chosen}) != len(chosen) or not chosen:
        raise ValueError(f"{file.name} has no run, or several of a seed, of {method}.")
    return pd.DataFrame(_result(run, runs) for run in chosen)


def _results(file: Path) -> pd.DataFrame:
    runs = read_published(file)
    return pd.DataFrame(_result(run, runs) for run in runs).sort_values("seed")


def _result(run: PublishedRun, runs: list[PublishedRun]) -> dict[str, object]:
    """Return the values of one run for a row."""
    local = reference(run, runs)
    own, alone = (
        pd.Series(each.kept["accuracy_of_new_clients"], dtype=float) for each in (run, local)
    )
    exchanged = run.kept["new_bytes_up"] + run.kept["new_bytes_down"]
    return {
        "strategy": run.config["strategy"],
        "rounds": run.config["new-client-rounds"],
        "seed": run.config["seed"],
        "accuracy": own.mean(),
        "gain": own.mean() - alone.mean(),
        "better": int((own > alone[own.index]).sum()),
        "clients": len(own),
        "gain_in_training": course_of(run).iloc[-1] - course_of(local).iloc[-1],
        "bytes": exchanged / len(own),
    }
