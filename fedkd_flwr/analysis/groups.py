"""Groups of a comparison: runs of one method with the same settings, which differ in seed."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from fedkd_flwr.analysis.columns import MISSING
from fedkd_flwr.analysis.settings import defining_settings, varied_settings
from fedkd_flwr.runs import Run

Groups = Mapping[str, list[Run]]
"""Finished runs by label: the method, and those of its settings that vary between its runs."""


def each_run(groups: Groups) -> Iterator[tuple[str, Run]]:
    """Yield each run with the label of its group."""
    for label, runs in groups.items():
        for run in runs:
            yield label, run


def grouped(runs: Iterable[Run]) -> tuple[dict[str, list[Run]], list[str]]:
    """Return the runs by label, one per seed in ascending order, and notes on runs left out."""
    groups: dict[str, dict[int, Run]] = defaultdict(dict)
    notes = []
    for strategy, members in by_strategy(runs).items():
        varied = varied_settings(members)
        # Of runs with equal settings and seed, the latest one counts.
        for run in sorted(members, key=lambda run: run.description.get("started") or ""):
            settings = defining_settings(run.config)
            named = [f"{name.rpartition('.')[2]}={settings.get(name, MISSING)}" for name in varied]
            label = f"{strategy} ({', '.join(named)})" if named else strategy
            before = groups[label].get(run.config["seed"])
            if before:
                notes.append(
                    f"{before.path.name} is left out: {run.path.name} is a later run with the same "
                    "settings and seed."
                )
            groups[label][run.config["seed"]] = run
    return {label: [runs[seed] for seed in sorted(runs)] for label, runs in groups.items()}, notes


def by_strategy(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs of each method."""
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.config["strategy"]].append(run)
    return found


def labels_by_method(groups: Groups) -> dict[str, list[str]]:
    """Return the labels of each method's settings."""
    labels: dict[str, list[str]] = defaultdict(list)
    for label, runs in groups.items():
        labels[runs[0].config["strategy"]].append(label)
    return labels
