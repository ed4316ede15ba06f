"""Rank the settings of a method by validation accuracy, never by test accuracy.

Settings that are chosen on test data have an optimistically biased test accuracy.
"""

from collections.abc import Sequence
from statistics import fmean as mean

import pandas as pd

from fedkd_flwr.analysis.groups import Groups, labels_by_method
from fedkd_flwr.config import ConfigError
from fedkd_flwr.runs import Run


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
