"""Which run each run of a comparison is compared with: by default one of `local`.

Also which methods cannot be compared with each other, and why.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

from fedkd_flwr.analysis.columns import REFERENCE
from fedkd_flwr.analysis.groups import Groups, mean_steps
from fedkd_flwr.analysis.ranking import best_by_validation, best_first
from fedkd_flwr.analysis.settings import varied_settings
from fedkd_flwr.config import ConfigError
from fedkd_flwr.runs import ROUNDS, Run, failures_in_words

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
            f"the {key} of seed {_listed(seeds)} differs between {label} and {other}, by the "
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


def _other_content(own: Iterable[Run], others: Iterable[Run]) -> dict[str, list[int]]:
    """Return the seeds whose data differ, by the names of the digests that both record."""
    theirs = {run.config["seed"]: run.description.get("data") or {} for run in others}
    found: dict[str, list[int]] = defaultdict(list)
    for run in own:
        seed = run.config["seed"]
        for key, digest in (run.description.get("data") or {}).items():
            if theirs.get(seed, {}).get(key, digest) != digest:
                found[key].append(seed)
    return found


def _listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds))


def _of_method(method: str, groups: Groups) -> list[str]:
    """Return the labels of a method's settings, those with the lowest batch order."""
    orders = {
        label: runs[0].config.get("batch-order", 0)
        for label, runs in groups.items()
        if runs[0].config["strategy"] == method
    }
    return [label for label, order in orders.items() if order == min(orders.values())]
