"""Which run each run of a comparison is compared with, and in which order settings are shown.

Settings of a method are ranked by validation accuracy, never by test accuracy, which would be
optimistically biased. Also which methods cannot be compared with each other, and why.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from statistics import fmean as mean

import pandas as pd

from fedkd_flwr.analysis.columns import REFERENCE
from fedkd_flwr.analysis.groups import Groups, labels_by_method, mean_steps
from fedkd_flwr.analysis.settings import varied_settings
from fedkd_flwr.config import ConfigError
from fedkd_flwr.runs import ROUNDS, Run, failures_in_words
from fedkd_flwr.runs.reading import other_data

TRAINING = {
    "learning-rate", "learning-rate-schedule", "local-epochs", "local-iterations", "batch-size",
    "patience", "optimizer", "momentum", "weight-decay",
}  # fmt: skip
"""Settings that a search of the reference may vary; the others are conditions of a comparison."""


class References:
    """The runs that the others of a comparison are compared with.

    Of several settings of the reference, a method is compared with the best on validation data,
    whatever its step size and number of steps (`TRAINING`). Without validation data it is compared
    with the one that takes at least as many gradient steps and the fewest of these. Only settings
    of its number of rounds, with most of its seeds and in the nearest conditions count. Seeds that
    the chosen one lacks have no reference: a gain over several settings would be a gain over none
    of them. Runs of the reference with a higher ``batch-order`` than others are compared like a
    method: they show how much chance changes. The reference (`against`) is a method, or the label
    of one of its settings.
    """

    def __init__(self, groups: Groups, against: str = REFERENCE) -> None:
        self.against = against
        self._rules: dict[str, dict[str, None]] = defaultdict(dict)
        self._groups = groups
        own = [against] if against in groups else _of_method(against, groups)
        self._by_seed = {
            name: {run.config["seed"]: run for run in groups[name]}
            for name in best_first(own, groups)[0]
        }
        self._preferred = {
            label: self._chosen(runs)
            for label, runs in groups.items()
            if label not in self._by_seed
        }

    def _chosen(self, runs: list[Run]) -> str | None:
        """Return the label that some runs are compared with; None without a common seed."""
        seeds = {run.config["seed"] for run in runs}
        distances = {
            name: _distance(runs[0], self._groups[name][0], len(seeds - own.keys()))
            for name, own in self._by_seed.items()
            if seeds & own.keys()
        }
        nearest = [name for name, one in distances.items() if one == min(distances.values())]
        if len(nearest) < 2:
            return nearest[0] if nearest else None
        try:
            best = best_by_validation(self.against, nearest, self._groups)
            rule = "the best on validation data"
        except ConfigError:
            rule = "without validation data, one with at least as many gradient steps"
            best = min(nearest, key=lambda name: _excess(runs, self._groups[name]))
        self._rules[rule][best] = None
        return best

    @property
    def choices(self) -> list[str]:
        """How settings of the reference were chosen for the others, in a sentence each."""
        found = {rule: ", ".join(sorted(names)) for rule, names in self._rules.items()}
        return [
            f"Of the settings of {self.against}, {rule} is the reference: {names}."
            for rule, names in found.items()
        ]

    @property
    def labels(self) -> list[str]:
        """Labels of the reference, several where it has several settings."""
        return list(self._by_seed)

    def __contains__(self, label: str) -> bool:
        """Return whether a label is the reference, or one of its settings."""
        return label in self._by_seed

    def setting_for(self, label: str) -> str | None:
        """Return the label that a method is compared with; None if they have no common seed."""
        return self._preferred.get(label)

    def name_of(self, label: str, seed: int) -> str | None:
        """Return the label that a run is compared with.

        None for a run of the reference, and where the setting that it is compared with lacks the
        seed.
        """
        name = self.setting_for(label)
        return name if name and seed in self._by_seed[name] else None

    def of(self, label: str, seed: int) -> Run | None:
        """Return the run that a run is compared with; see `name_of`."""
        name = self.name_of(label, seed)
        return self._by_seed[name][seed] if name else None

    def matched(self, label: str, seed: int) -> Run | None:
        """Return the run that a run has a gain over; None also for those of `refusals`."""
        return None if label in self.refusals else self.of(label, seed)

    @cached_property
    def refusals(self) -> dict[str, str]:
        """Why methods have no gain and no verdict, by their labels, in a sentence each."""
        found = {
            label: self.obstacles(label, other) for label, other in self._preferred.items() if other
        }
        return {
            label: f"{label} has no verdict against {self._preferred[label]}: {'; '.join(reasons)}."
            for label, reasons in found.items()
            if reasons
        }

    def obstacles(self, label: str, other: str) -> list[str]:
        """Return why two groups cannot be compared, and what to do; empty if they can be."""
        own, others = self._groups[label], self._groups[other]
        rounds, their_rounds = (runs[0].config[ROUNDS] for runs in (own, others))
        reasons = []
        if rounds != their_rounds:
            reasons.append(
                f"{ROUNDS} is {rounds} in {label} and {their_rounds} in {other}; run both with the "
                "same number"
            )
        reasons += [
            f"the {key} of seed {', '.join(seeds)} differs between {label} and {other}, by the "
            "digests in config.json; run both on the same data"
            for key, seeds in _other_content(own, others).items()
        ]
        return [*reasons, *self._silent[label], *self._silent[other]]

    @cached_property
    def _silent(self) -> dict[str, list[str]]:
        """Which clients never gave a valid reply when they were asked, by label."""
        found = {
            label: failures_in_words(runs, only_silent=True) for label, runs in self._groups.items()
        }
        return {
            label: [f"in {label} {clients}; correct that and run it again"] if clients else []
            for label, clients in found.items()
        }


def _distance(run: Run, other: Run, lacking: int) -> tuple[bool, int, int]:
    """Return how different two runs are: the rounds, the seeds that lack, the conditions."""
    conditions = set(varied_settings([run, other])) - TRAINING
    return run.config[ROUNDS] != other.config[ROUNDS], lacking, len(conditions)


def _excess(runs: list[Run], others: list[Run]) -> tuple[bool, float, int]:
    """Return the order of references by steps: those with enough first, then the closest."""
    steps = mean_steps(others) - mean_steps(runs)
    differing = len(varied_settings([runs[0], others[0]]))
    return not steps >= 0, math.inf if math.isnan(steps) else abs(steps), differing


def _other_content(own: Iterable[Run], others: Iterable[Run]) -> dict[str, list[str]]:
    """Return the seeds whose data differ, by the names of the digests that both record."""
    digests = {run.config["seed"]: run.description.get("data") or {} for run in others}
    found: dict[str, list[str]] = defaultdict(list)
    for run in own:
        seed = run.config["seed"]
        for key in other_data(run, digests.get(seed, {})):
            found[key].append(str(seed))
    return found


def _of_method(method: str, groups: Groups) -> list[str]:
    """Return the labels of a method's settings, those with the lowest batch order."""
    orders = {
        label: runs[0].config.get("batch-order", 0)
        for label, runs in groups.items()
        if runs[0].config["strategy"] == method
    }
    return [label for label, order in orders.items() if order == min(orders.values())]


def validation_accuracy(run: Run) -> float:
    """Return the clients' mean accuracy on their validation splits after the last round.

    Raises `ConfigError` if the clients have no validation data, or none was evaluated in the last
    round.
    """
    last = run.round_rows[-1]
    if last["accuracy_mean"] is None:
        raise ConfigError(
            f"{run.path.name} cannot be ranked: no client was evaluated in its last "
            f"round, {last['round']}."
        )
    accuracy = last.get("validation_accuracy_mean")
    if accuracy is None:
        raise ConfigError(
            f"{run.path.name} has no validation data, which ranking needs; set client-split to "
            "train/validation/test shares such as 70/10/20."
        )
    return float(accuracy)


def accuracies_on_common_seeds(
    strategy: str, labels: Sequence[str], groups: Groups
) -> dict[str, list[float]]:
    """Return the validation accuracies of a method's settings on the seeds that all have.

    Seeds differ more than settings do. Raises `ConfigError` if the clients of a run have no
    validation data, or settings have no seed in common.
    """
    by_seed = {label: {run.config["seed"]: run for run in groups[label]} for label in labels}
    common = set.intersection(*map(set, by_seed.values()))
    if not common:
        raise ConfigError(
            f"The settings of {strategy} have no seed in common, which ranking needs; run them "
            "with the same seeds."
        )
    return {
        label: [validation_accuracy(run) for seed, run in runs.items() if seed in common]
        for label, runs in by_seed.items()
    }


def best_by_validation(strategy: str, labels: Sequence[str], groups: Groups) -> str:
    """Return the best of a method's settings; raises as `accuracies_on_common_seeds` does."""
    accuracies = accuracies_on_common_seeds(strategy, labels, groups)
    return max(labels, key=lambda label: mean(accuracies[label]))


def best_first(labels: Sequence[str], groups: Groups) -> tuple[list[str], str | None]:
    """Return the settings of one method, the best on validation data first, and a note on it.

    In alphabetical order if there is no validation accuracy; a single setting has no note.
    """
    if len(labels) < 2:
        return list(labels), None
    strategy = groups[labels[0]][0].config["strategy"]
    try:
        accuracies = accuracies_on_common_seeds(strategy, labels, groups)
    except ConfigError as error:
        return sorted(labels), (
            f"The settings of {strategy} are not ranked, because nothing is chosen on "
            f"test data: {error}"
        )
    ranked = sorted(labels, key=lambda label: -mean(accuracies[label]))
    return ranked, f"The settings of {strategy} are ranked by validation accuracy."


def reading_order(table: pd.DataFrame, groups: Groups) -> tuple[list[str], list[str]]:
    """Return the labels of a comparison in the order to show them, and notes on that order.

    Methods are sorted by test accuracy. A method with several settings is placed by the setting
    with the best validation accuracy, and its other settings follow. Without validation data the
    settings of a method are in alphabetical order.
    """
    notes = []
    blocks = []
    for labels in labels_by_method(groups).values():
        ordered, note = best_first(labels, groups)
        blocks.append(ordered)
        notes += [note] if note else []
    # Missing test accuracies go last.
    accuracies = table["accuracy"].fillna(-1.0)
    blocks.sort(key=lambda labels: -float(accuracies[labels[0]]))
    return [label for labels in blocks for label in labels], notes
