"""Results of published runs, and the columns that show them.

Accuracies are in percent, ± is over seeds, and gains are in points.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from runs import PublishedRun, compared, read_set

from fedkd_flwr.analysis.columns import COLUMNS as COMPARED
from fedkd_flwr.analysis.columns import in_bytes, points
from fedkd_flwr.analysis.results import steps_of_a_client
from fedkd_flwr.analysis.significance import Outcome

REFERENCE = "local"

# ---- Cells and lines -------------------------------------------------------------------


def with_spread(values: Iterable[float], digits: int = 1) -> str:
    """Return the mean over seeds, with their standard deviation if there are several."""
    found = np.asarray(list(values), dtype=float)
    spread = f" ± {found.std(ddof=1):.{digits}f}" if len(found) > 1 else ""
    return f"{found.mean():.{digits}f}{spread}"


def in_points(gains: Iterable[float]) -> str:
    """Return gains, given as fractions, in points."""
    return ", ".join(map(points, gains))


def in_percent(values: Iterable[float]) -> str:
    """Return fractions in percent."""
    return ", ".join(f"{100 * value:.1f}" for value in values)


# ---- Results ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """One run after one round, and the run of `local` that it is compared with."""

    run: PublishedRun
    round: int
    local: PublishedRun | None

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.run.config["seed"])

    @property
    def set_name(self) -> str:
        """The published set of the run."""
        return "/".join(self.run.path.parts[-3:-1])

    @property
    def strategy(self) -> str:
        """The method."""
        return str(self.run.config["strategy"])

    @property
    def is_reference(self) -> bool:
        """Whether it is a run of `local` that others are compared with."""
        return self.run is self.local

    @cached_property
    def accuracy(self) -> float:
        """Mean accuracy over clients."""
        return at(self.run, self.round)

    @cached_property
    def gain(self) -> float:
        """Gain over `local` after the same round; after its last if it has fewer."""
        return self.accuracy - at(self.local, self.round) if self.local else float("nan")

    def value(self, name: str) -> Any:
        """Return a setting, or the round; a dash where the method does not read the setting.

        A setting that methods have in different tables, such as ``kt-pfl.cache-rounds``, can be
        named by its last part.
        """
        if name == "round":
            return self.round
        settings = self.run.settings
        of_table = next((v for k, v in settings.items() if k.endswith(f".{name}")), "-")
        return settings.get(name, of_table)

    def has(self, conditions: dict[str, str]) -> bool:
        """Return whether the run has the settings. Settings of other methods are ignored."""
        return all(str(self.value(k)) in (v, "-") for k, v in conditions.items())


def at(run: PublishedRun, server_round: int) -> float:
    """Return the mean accuracy after a round, or after the last if a run has fewer rounds."""
    rounds = run.kept["rounds"]
    return run.accuracies[rounds.index(min(server_round, rounds[-1]))]


def accuracy_with(model: str, run: PublishedRun) -> float:
    """Return the mean accuracy of the clients with an architecture, after the last round."""
    models = str(run.settings["models"]).split(",")
    accuracies = run.kept["accuracy_of_clients"]
    return float(np.mean(accuracies[models.index(model) :: len(models)]))


def reference(run: PublishedRun, runs: list[PublishedRun]) -> PublishedRun | None:
    """Return the run of `local` with the same seed that shares most of a run's settings.

    Of several orders of batches it is the lowest; runs of `local` with others are compared with it.
    """

    def differences(other: PublishedRun) -> int:
        own, others = run.settings, other.settings
        return sum(own[k] != others[k] for k in own if "." not in k and k != "strategy")

    peers = [
        other
        for other in runs
        if other.config["strategy"] == REFERENCE and other.config["seed"] == run.config["seed"]
    ]
    first = min((other.settings["batch-order"] for other in peers), default=0)
    peers = [other for other in peers if other.settings["batch-order"] == first]
    return min(peers, key=differences, default=None)


def results(
    name: str, conditions: dict[str, str] | None = None, every_round: bool = False
) -> list[Result]:
    """Return the results of a set with the given settings, by seed.

    Parameters
    ----------
    name : str
        Of the set.
    conditions : dict, optional
        Settings that runs must have; ``round`` counts as one. Default: none.
    every_round : bool
        Whether all evaluated rounds count, or the last alone.
    """
    runs, conditions = read_set(name), conditions or {}
    is_early = every_round or "round" in conditions
    found = [
        Result(run, number, reference(run, runs))
        for run in runs
        for number in (run.kept["rounds"] if is_early else run.kept["rounds"][-1:])
    ]
    return sorted((r for r in found if r.has(conditions)), key=lambda result: result.seed)


def led_by(name: str, method: str) -> set[str]:
    """Return the methods of a set over which a method's lead is shown, after Holm's correction.

    These are the pairs of `fedkd compare --pairs`.
    """
    pairs = compared(name).pairs
    better = [pair for pair, effect in pairs.items() if effect.outcome is Outcome.BETTER]
    return {other for own, other in better if own == method}


def bytes_of(own: list[Result]) -> float:
    """Return the mean bytes of a run, up and down."""
    return float(np.mean([r.run.kept["bytes_up"] + r.run.kept["bytes_down"] for r in own]))


def range_of_bytes(groups: Iterable[list[Result]]) -> str:
    """Return the mean bytes of a run: one number, or the range over groups where they differ."""
    return " to ".join(dict.fromkeys(in_bytes(size) for size in sorted(map(bytes_of, groups))))


def steps_of_method(own: list[Result]) -> int:
    """Return the gradient steps of the mean client, without those of a safeguard's private model.

    A private model takes the steps of `local`. Accuracies are of the method's model alone.
    """
    return round(sum(map(_steps_of_method, own)) / len(own))


def _steps_of_method(result: Result) -> float:
    settings, taken = result.run.settings, steps_of_a_client(result.run)
    if result.strategy == REFERENCE or settings["safeguard"] == "none":
        return taken
    return taken - settings["local-iterations"] * settings["num-server-rounds"]


# ---- Columns ---------------------------------------------------------------------------


def _mean(name: str, layout: Callable[[float], str]) -> Callable[[list[Result]], str]:
    return lambda own: layout(float(np.mean([result.run.kept[name] for result in own])))


def _users(name: str, scale: float, digits: int) -> Callable[[list[Result]], str]:
    """Return a column of PersFL's users: mean over users, then seeds."""

    def cell(own: list[Result]) -> str:
        if any(name not in result.run.kept.get("users", {}) for result in own):
            return "-"
        return with_spread(
            (scale * np.mean(result.run.kept["users"][name]) for result in own), digits
        )

    return cell


def chosen_gains(own: list[Result]) -> str:
    """Return the gains by seed, each run at its round of best validation accuracy."""
    values = []
    for result in own:
        runs = [result.run, result.local]
        best = [int(np.argmax(run.kept["validation_accuracy_mean"])) for run in runs if run]
        mine, local = (run.accuracies[n] for run, n in zip(runs, best, strict=True) if run)
        values.append(mine - local)
    return in_points(values)


def _by_round(own: list[Result]) -> str:
    """Return the mean accuracy over seeds after each evaluated round."""
    rounds = own[0].run.kept["rounds"]
    means = np.mean([result.run.accuracies for result in own], axis=0)
    return ", ".join(
        f"{number}: {100 * mean:.1f}" for number, mean in zip(rounds, means, strict=True)
    )


def _bottom_decile(own: list[Result]) -> str:
    deciles = [np.quantile(result.run.kept["accuracy_of_clients"], 0.1) for result in own]
    return f"{100 * np.mean(deciles):.1f}"


def _new(result: Result, run: PublishedRun | None) -> pd.Series:
    return pd.Series(run.kept["accuracy_of_new_clients"] if run else {}, dtype=float)


def _better_new(own: list[Result]) -> str:
    pairs = [(_new(r, r.run), _new(r, r.local)) for r in own]
    return f"{sum((a > b[a.index]).sum() for a, b in pairs)} of {sum(len(a) for a, _ in pairs)}"


def _own_alone(cell: Callable[[list[Result]], str]) -> Callable[[list[Result]], str]:
    """Leave a column empty for `local`."""
    return lambda own: "" if own[0].is_reference else cell(own)


def heading(name: str) -> str:
    """Return the heading of a number under which `fedkd compare` shows it too."""
    return f"{COMPARED[name].heading}:"


COLUMNS: dict[str, tuple[str, Callable[[list[Result]], str]]] = {
    "seeds": (heading("seeds"), lambda own: str(len(own))),
    "accuracy": ("accuracy", lambda own: with_spread(100 * r.accuracy for r in own)),
    "by-seed": ("accuracy by seed", lambda own: in_percent(r.accuracy for r in own)),
    "by-round": ("accuracy by round", _by_round),
    "validation": (
        "validation accuracy",
        lambda own: with_spread(100 * r.run.kept["validation_accuracy_mean"][-1] for r in own),
    ),
    "gains": (
        "gain over `local`, by seed",
        _own_alone(lambda own: in_points(r.gain for r in own)),
    ),
    "above": (
        "seeds above",
        _own_alone(lambda own: f"{sum(r.gain > 1e-9 for r in own)} of {len(own)}"),
    ),
    "chosen": ("gain at the validation rounds, by seed", _own_alone(chosen_gains)),
    "users": (
        heading("clients_std"),
        lambda own: (
            f"{np.mean([100 * np.std(r.run.kept['accuracy_of_clients']) for r in own]):.1f}"
        ),
    ),
    "decile": (heading("clients_decile"), _bottom_decile),
    "up": ("up:", _mean("bytes_up", in_bytes)),
    "down": ("down:", _mean("bytes_down", in_bytes)),
    "bytes": (
        heading("bytes"),
        lambda own: in_bytes(bytes_of(own)),
    ),
    "steps": (
        heading("gradient_steps"),
        lambda own: f"{steps_of_method(own):,}",
    ),
    "epsilon": (
        "epsilon:",
        lambda own: f"{max(r.run.kept.get('epsilon', np.inf) for r in own):,.1f}",
    ),
    "dp-epsilon": (
        "epsilon for a sample:",
        lambda own: f"{max(r.run.kept.get('dp_epsilon', np.inf) for r in own):,.1f}",
    ),
    "private": ("moved by private steps:", _mean("moved_private", "{:.1g}".format)),
    "public": (
        "moved by distillation:",
        lambda own: (
            _mean("moved_public", "{:.1g}".format)(own)
            if all("moved_public" in result.run.kept for result in own)
            else "-"
        ),
    ),
    "global": ("global model", _users("global_accuracy", 100, 1)),
    "lambda": ("lambda", _users("lambda", 1, 3)),
    "temperature": ("T", _users("temperature", 1, 3)),
    "new": ("new clients, by seed", lambda own: in_percent(_new(r, r.run).mean() for r in own)),
    "new-gains": (
        "their gain over `local`, by seed",
        _own_alone(
            lambda own: in_points(_new(r, r.run).mean() - _new(r, r.local).mean() for r in own)
        ),
    ),
    "new-better": ("better off", _own_alone(_better_new)),
    "new-bytes": (
        "exchanged by each:",
        lambda own: in_bytes(
            np.mean(
                [
                    (r.run.kept["new_bytes_up"] + r.run.kept["new_bytes_down"])
                    / len(_new(r, r.run))
                    for r in own
                ]
            )
        ),
    ),
}
"""Heading and cell of each column that depends on a row alone."""
