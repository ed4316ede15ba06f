"""Single values of published runs, for sentences; see `check_tables.py`.

A method is given by its strategy. If it was run with several settings, these are added, as in
``fedmd,kt-pfl.temperature=1.0``. ``round=30`` selects that round instead of the last.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from publish_runs import read_published
from tables import REFERENCE, at, course_of, has_settings, in_points, reference

from fedkd_flwr.analysis.rendering import in_bytes

HERE = Path(__file__).parent


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


def gains_at_validation_round(file: Path, method: str) -> str:
    """Return each seed's gain over `local`, each at its round of best validation accuracy.

    `local` can overfit in later rounds, so its last round would flatter a method.
    """
    own, local = (_at_validation_round(file, name) for name in (method, REFERENCE))
    return in_points(own - local[own.index])


def comparisons_above(folder: str, method: str) -> str:
    """Return in how many tables of a folder a method is above `local` on average, as ``7 of 8``."""
    gains = [_gains(file, method, "").mean() for file in _tables(folder)]
    return f"{sum(gain > 0 for gain in gains)} of {len(gains)}"


def seeds_above(folder: str, method: str) -> str:
    """Return in how many seeds of all tables of a folder a method is above `local`."""
    gains = [gain for file in _tables(folder) for gain in _gains(file, method, "")]
    return f"{sum(gain > 1e-9 for gain in gains)} of {len(gains)}"


def rows_above(folder: str) -> str:
    """Return how many rows of a folder's tables are above `local` in every seed."""
    rows = [_gains(file, method, "") for file in _tables(folder) for method in _methods(file)]
    return f"{sum(bool((gains > 1e-9).all()) for gains in rows)} of {len(rows)}"


def distance(file: Path, method: str, over: str = "") -> str:
    """Return the absolute mean gain in points, for sentences that state its direction."""
    return f"{100 * abs(_gains(file, method, over).mean()):.1f}"


def from_paper(file: Path, method: str, percent: str) -> str:
    """Return the mean accuracy minus a paper's accuracy in percent, in points."""
    return in_points([_of_seeds(file, method)["accuracy"].mean() - float(percent) / 100])


def exchanged(file: Path, method: str) -> str:
    """Return the bytes exchanged in a run, in both directions."""
    return in_bytes(_of_seeds(file, method)["bytes"].mean())


def harmed(file: Path, method: str) -> str:
    """Return the share of clients that are less accurate than under `local`, over all seeds."""
    own, local = (
        np.stack(_of_seeds(file, name)["accuracy_of_clients"].tolist())
        for name in (method, REFERENCE)
    )
    return f"{(own < local).mean():.0%}"


def times_fewer_bytes(file: Path, method: str, than: str) -> str:
    """Return the bytes of another method as a multiple of this method's."""
    own, other = (_of_seeds(file, name)["bytes"].mean() for name in (method, than))
    return f"{other / own:.0f}"


def moved(file: Path, method: str, which: str) -> str:
    """Return how far a round moves a client's weights, relative to their norm.

    `which` is ``private`` for training on own data, or ``public`` for distillation.
    """
    return f"{_of_seeds(file, method)[f'moved_{which}'].mean():.1g}"


def _tables(folder: str) -> list[Path]:
    """Return the published final runs of a benchmark's folder, which are next to their tuning."""
    tunings = sorted((HERE / folder).glob("*-tuning.json"))
    return [file.with_name(file.name.replace("-tuning", "")) for file in tunings]


def _methods(file: Path) -> list[str]:
    """Return the methods of a file, without `local`."""
    return sorted({run.config["strategy"] for run in read_published(file)} - {REFERENCE})


def _at_validation_round(file: Path, method: str) -> pd.Series:
    """Return the accuracy of each seed at its round of best validation accuracy."""
    runs = [run for run in read_published(file) if run.config["strategy"] == method]
    best = {
        run.config["seed"]: run.accuracies[int(np.argmax(run.kept["validation_accuracy_mean"]))]
        for run in runs
    }
    return pd.Series(best).sort_index()


def _gains(file: Path, method: str, over: str) -> pd.Series:
    own = _of_seeds(file, method)
    return own["accuracy"] - _of_seeds(file, over)["accuracy"] if over else own["gain"]


def _of_seeds(file: Path, method: str) -> pd.DataFrame:
    """Return one row per seed, ascending: accuracy, gain over `local` and the stored values."""
    strategy, *pairs = method.split(",")
    conditions = dict(pair.split("=", 1) for pair in pairs)
    wanted_round = conditions.pop("round", None)
    runs = read_published(file)
    rows = {}
    for run in runs:
        if run.config["strategy"] != strategy or not has_settings(run, conditions):
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
