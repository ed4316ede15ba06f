"""Single figures of published runs, for sentences; see `check_tables.py`.

A method is named by its strategy and, where several settings of it were run, by those, as in
``fedmd,kt-pfl.temperature=1.0``; ``round=30`` counts that round in place of the last.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from publish_runs import read_published
from tables import REFERENCE, at, course_of, in_points, is_as_said, reference

from fedkd_flwr.analysis.rendering import in_bytes


def accuracy(file: Path, method: str) -> str:
    """Return the mean accuracy in percent."""
    return f"{100 * _of_seeds(file, method)['accuracy'].mean():.1f}"


def accuracies(file: Path, method: str) -> str:
    """Return the accuracy of each seed in percent."""
    return ", ".join(f"{100 * value:.1f}" for value in _of_seeds(file, method)["accuracy"])


def gain(file: Path, method: str, over: str = "") -> str:
    """Return the mean gain over `local`, or over another method, in points."""
    return in_points([_gains(file, method, over).mean()])


def gains(file: Path, method: str, over: str = "") -> str:
    """Return the gain over `local`, or over another method, of each seed in points."""
    return in_points(_gains(file, method, over))


def distance(file: Path, method: str, over: str = "") -> str:
    """Return the size of the mean gain in points, for sentences that say its direction."""
    return f"{100 * abs(_gains(file, method, over).mean()):.1f}"


def from_paper(file: Path, method: str, percent: str) -> str:
    """Return the mean accuracy less what a paper prints in percent, in points."""
    return in_points([_of_seeds(file, method)["accuracy"].mean() - float(percent) / 100])


def exchanged(file: Path, method: str) -> str:
    """Return what is exchanged in a run, both ways, in bytes."""
    return in_bytes(_of_seeds(file, method)["bytes"].mean())


def harmed(file: Path, method: str) -> str:
    """Return the share of clients that are below their own `local`, over all seeds."""
    own, local = (
        np.stack(_of_seeds(file, name)["accuracy_of_clients"].tolist())
        for name in (method, REFERENCE)
    )
    return f"{(own < local).mean():.0%}"


def times_fewer_bytes(file: Path, method: str, than: str) -> str:
    """Return how many times as many bytes another method exchanges."""
    own, other = (_of_seeds(file, name)["bytes"].mean() for name in (method, than))
    return f"{other / own:.0f}"


def moved(file: Path, method: str, which: str) -> str:
    """Return how far a round moves a client's weights, relative to their norm.

    `which` is ``private`` or ``public``: by training, or by what others taught.
    """
    return f"{_of_seeds(file, method)[f'moved_{which}'].mean():.1g}"


def _gains(file: Path, method: str, over: str) -> pd.Series:
    own = _of_seeds(file, method)
    return own["accuracy"] - _of_seeds(file, over)["accuracy"] if over else own["gain"]


def _of_seeds(file: Path, method: str) -> pd.DataFrame:
    """Return one row a seed, ascending: accuracy and gain over `local`, and what was kept."""
    strategy, *pairs = method.split(",")
    conditions = dict(pair.split("=", 1) for pair in pairs)
    wanted_round = conditions.pop("round", None)
    runs = read_published(file)
    rows = {}
    for run in runs:
        if run.config["strategy"] != strategy or not is_as_said(run, conditions):
            continue
        seed, course, local = run.config["seed"], course_of(run), course_of(reference(run, runs))
        if seed in rows:
            raise ValueError(f"{file.name} has several runs of {method} with seed {seed}.")
        number = int(wanted_round) if wanted_round else course.index[-1]
        rows[seed] = {
            **run.kept,
            "accuracy": course[number],
            "gain": course[number] - at(local, number),
            "bytes": run.kept["bytes_up"] + run.kept["bytes_down"],
        }
    if not rows:
        raise ValueError(f"{file.name} has no run of {method}.")
    return pd.DataFrame.from_dict(rows, orient="index").sort_index()
