"""Tuning on validation data: each method's best of a few settings, and sweeps made of them.

A tuning grid is a TOML file with a list of tables for each method, the settings to try::

    local = [{ learning-rate = 0.01 }, { learning-rate = 0.05 }]
    fedprox = [{ fedprox.mu = 0.01 }, { fedprox.mu = 0.1 }]

All of them are runs of one sweep. Those that stand out on validation data make up the next
sweep, with seeds that nothing was chosen on.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkd_flwr.config import ConfigError
from fedkd_flwr.config_files import load_toml
from fedkd_flwr.flat import Scalar, flatten
from fedkd_flwr.methods import METHODS
from fedkd_flwr.runs import Run


@dataclass(frozen=True)
class Candidate:
    """A method with the settings to try.

    Attributes
    ----------
    strategy : str
        Name of the method.
    settings : dict
        Flat settings, beside those that all candidates share.
    """

    strategy: str
    settings: dict[str, Scalar]


def read_grid(path: str | Path, models: Iterable[str] = ()) -> list[Candidate]:
    """Read a tuning grid.

    Parameters
    ----------
    path : str or Path
        The TOML file.
    models : iterable of str
        Architectures of the clients; methods that need one architecture are left out where
        there are more.

    Returns
    -------
    list of Candidate
        In the order of the file.

    Raises
    ------
    ConfigError
        If the file is no grid, or names a method that does not exist.
    """
    path = Path(path)
    are_mixed = len(set(models)) > 1
    candidates = []
    for strategy, tables in load_toml(path, "grid").items():
        if strategy not in METHODS:
            raise ConfigError(
                f"The grid {path} tunes {strategy}, which is none of the methods "
                f"{', '.join(METHODS)}."
            )
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ConfigError(f"The grid {path} needs a list of tables for {strategy}.")
        if not (are_mixed and METHODS[strategy].strategy.needs_one_model):
            candidates += [Candidate(strategy, flatten(table)) for table in tables]
    return candidates


def validation_accuracy(run: Run) -> float:
    """Return the clients' mean accuracy on their validation splits after the last round.

    Raises
    ------
    ConfigError
        If the clients of the run have no validation data, or none of them was evaluated then.
    """
    last = run.round_rows[-1]
    if last["accuracy_mean"] is None:
        raise ConfigError(
            f"{run.path.name} cannot be chosen or ranked: no client was evaluated in its last "
            f"round, {last['round']}."
        )
    accuracy = last.get("validation_accuracy_mean")
    if accuracy is None:
        raise ConfigError(
            f"{run.path.name} has no validation data to choose by; set client-split to "
            "something like 60/20/20."
        )
    return float(accuracy)


def best_of_each(scores: Iterable[tuple[Candidate, float]]) -> list[Candidate]:
    """Return the candidate with the highest score of each method, the first of equals.

    Parameters
    ----------
    scores : iterable of (Candidate, float)
        Candidates of any methods and what they reached on validation data.
    """
    best: dict[str, tuple[Candidate, float]] = {}
    for candidate, score in scores:
        if candidate.strategy not in best or score > best[candidate.strategy][1]:
            best[candidate.strategy] = candidate, score
    return [candidate for candidate, _ in best.values()]


def sweep_text(
    base: Mapping[str, Scalar],
    candidates: Iterable[Candidate],
    seeds: Sequence[int],
    comment: str = "",
) -> str:
    """Return a sweep file of candidates, as `fedkd sweep` reads it.

    Parameters
    ----------
    base : mapping
        What all runs share, ``preset`` included.
    candidates : iterable of Candidate
        The methods with their settings.
    seeds : sequence of int
        Seeds of each.
    comment : str
        Lines to stand above it, without the marks of a comment.
    """
    remarks = "".join(f"# {line}\n" for line in comment.splitlines())
    shared = "".join(f"{_pair(name, value)}\n" for name, value in base.items())
    tables = "".join(
        f"    {_inline({'strategy': candidate.strategy, **candidate.settings})},\n"
        for candidate in candidates
    )
    return (
        f"{remarks}[base]\n{shared}\n"
        f"[grid]\nseed = {json.dumps(list(seeds))}\ncombinations = [\n{tables}]\n"
    )


def _inline(settings: Mapping[str, Any]) -> str:
    return f"{{ {', '.join(_pair(name, value) for name, value in settings.items())} }}"


def _pair(name: str, value: Any) -> str:
    # A number, a word or a truth value reads the same in TOML as in JSON.
    return f"{name} = {json.dumps(value)}"
