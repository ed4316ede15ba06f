"""The numbers of a comparison: of each client, of each run, and means over seeds.

Fairness across clients is the bottom decile, the mean of the worst tenth, and Jain's index.
"""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedkd_flwr.analysis.groups import (
    Groups,
    client_accuracies,
    client_test_images,
    each_run,
    new_client_accuracies,
    steps_of_a_client,
)
from fedkd_flwr.analysis.harm import safeguarded
from fedkd_flwr.analysis.reference_runs import References
from fedkd_flwr.runs import Run
from fedkd_flwr.runs.reading import damaged
from strategies.core.masks import ANSWERS, from_text, unpacked_answers
from strategies.core.metrics import MEANS
from strategies.core.safeguard import SAFEGUARD_COLUMNS

WORST_SHARE = 0.1
"""Share of the clients that count as the worst ones."""


def bottom_decile(accuracies: pd.Series) -> float:
    """Return the 10th percentile of the accuracies, interpolated linearly; NaN without clients."""
    return float(accuracies.quantile(WORST_SHARE))


def mean_of_worst_tenth(accuracies: pd.Series) -> float:
    """Return the mean accuracy of the worst tenth of the clients, at least one client."""
    worst = math.ceil(WORST_SHARE * len(accuracies))
    return float(accuracies.nsmallest(worst).mean())


def jains_index(accuracies: pd.Series) -> float:
    """Return Jain's index, (Σ a)² / (N Σ a²).

    It is 1 if all accuracies are equal, 1/N if only one is not zero, and NaN if all are zero.
    R. Jain, D. Chiu, W. Hawe, *A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems*, DEC-TR-301, 1984.
    """
    squares = float(np.square(accuracies).sum())
    return float(accuracies.sum()) ** 2 / (len(accuracies) * squares) if squares else math.nan


AT_SECOND_MOMENTS = ("trained_accuracy", "received_accuracy", "distilled_accuracy")
"""Mean accuracies at other moments of a round than that of ``accuracy``."""

OF_NEW_CLIENTS = ("new_accuracy", "new_worst", "new_beats_local")
"""Columns of a run that are about its new clients, where some run has any."""


def client_results(
    groups: Groups,
    references: References,
    accuracies_of: Callable[[Run], pd.Series] = client_accuracies,
) -> pd.DataFrame:
    """Return one row per run and client at the last evaluated round.

    Columns ``method``, ``seed``, ``partition_id``, ``accuracy``, ``local_accuracy``, that of the
    reference, ``gain``, their difference, NaN where there is nothing to compare a client with,
    ``reference``, the label of the reference, ``test_images``, the size of the test split, and
    ``lost`` and ``won``, the images that only the reference or only the method gets right; NaN
    where a run did not record them. Those of
    `fedkd_flwr.analysis.harm.safeguarded` where some run has a safeguard.
    """
    frames = []
    for label, run in each_run(groups):
        seed = run.config["seed"]
        reference = references.matched(label, seed)
        accuracies = accuracies_of(run)
        clients = accuracies.index
        nothing = pd.Series(dtype=float)
        before = (accuracies_of(reference) if reference else nothing).reindex(clients)
        answers = lost_and_won(run, reference).reindex(clients)
        frame = pd.DataFrame(
            {
                "method": label,
                "seed": seed,
                "partition_id": clients,
                "accuracy": accuracies,
                "local_accuracy": before,
                "gain": accuracies - before,
                "reference": references.name_of(label, seed),
                "test_images": client_test_images(run).reindex(clients),
                "lost": answers["lost"],
                "won": answers["won"],
                **safeguarded(run).reindex(clients),
            }
        )
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def run_results(groups: Groups, clients: pd.DataFrame, references: References) -> pd.DataFrame:
    """Return one row per run; accuracies at the last evaluation are those of `clients`.

    Columns ``method``, ``seed``, ``accuracy``, ``accuracy_chosen``, ``clients_std``,
    ``clients_worst``, ``clients_decile``, ``clients_worst_tenth``, ``jain``, ``beats_local`` and
    ``harmed`` (the shares of clients above and below the reference), ``worst_loss`` (the largest
    loss of a client, 0 where none loses), ``nll`` (mean cross-entropy), ``numbers``, ``bytes``,
    ``gradient_steps`` (the mean over the clients in training, where a run counted them),
    and ``path``; NaN for what a run does not have. Columns of `AT_SECOND_MOMENTS`, of a safeguard,
    and of `strategies.core.metrics.MEANS`, means over clients, where some run has
    measured them;
    those of `OF_NEW_CLIENTS` where some run has any: mean and worst accuracy, and the share of them
    that are above the reference's own.
    """
    by_run = dict(iter(clients.groupby(["method", "seed"])))
    rows = []
    for label, run in each_run(groups):
        summary = run.summary or {}
        last, chosen = summary["last_round"] or {}, summary["validation_round"] or {}
        seed = run.config["seed"]
        own = by_run.get((label, seed), clients.iloc[:0])
        accuracies = own["accuracy"]
        rows.append(
            {
                "method": label,
                "seed": seed,
                "accuracy": accuracies.mean(),
                "accuracy_chosen": chosen.get("accuracy_mean"),
                "clients_std": accuracies.std(ddof=0),
                "clients_worst": accuracies.min(),
                "clients_decile": bottom_decile(accuracies),
                "clients_worst_tenth": mean_of_worst_tenth(accuracies),
                "jain": jains_index(accuracies),
                **_against_reference(own["gain"].dropna()),
                "nll": last.get("loss_mean"),
                **_means_over_clients(run),
                **_of_new_clients(run, references.matched(label, seed)),
                "numbers": summary["numbers_up"] + summary["numbers_down"],
                "bytes": summary["bytes_up"] + summary["bytes_down"],
                "gradient_steps": steps_of_a_client(run),
                "path": str(run.path),
            }
        )
    results = pd.DataFrame(rows)
    numeric = [name for name in results.columns if name not in ("method", "seed", "path")]
    optional = (*MEANS, *SAFEGUARD_COLUMNS, *AT_SECOND_MOMENTS, *OF_NEW_CLIENTS)
    measured_by_some = (*optional, "gradient_steps")
    unmeasured = [name for name in measured_by_some if results[name].isna().all()]
    return results.astype(dict.fromkeys(numeric, float)).drop(columns=unmeasured)


def _means_over_clients(run: Run) -> dict[str, float]:
    """Return means over clients at the last evaluation; NaN for a moment that one of them lacks."""
    names = (*MEANS, *SAFEGUARD_COLUMNS, *AT_SECOND_MOMENTS)
    rows = run.last_evaluations.reindex(columns=names)
    return {name: float(rows[name].mean(skipna=name not in AT_SECOND_MOMENTS)) for name in names}


def _of_new_clients(run: Run, reference: Run | None) -> dict[str, float]:
    accuracies = new_client_accuracies(run)
    if accuracies.empty:
        return dict.fromkeys(OF_NEW_CLIENTS, math.nan)
    local = new_client_accuracies(reference) if reference else pd.Series(dtype=float)
    gains = (accuracies - local).dropna()
    return {
        "new_accuracy": float(accuracies.mean()),
        "new_worst": float(accuracies.min()),
        "new_beats_local": math.nan if gains.empty else float((gains > 0).mean()),
    }


def _against_reference(gains: pd.Series) -> dict[str, float]:
    if gains.empty:
        return dict.fromkeys(("beats_local", "harmed", "worst_loss"), math.nan)
    return {
        "beats_local": float((gains > 0).mean()),
        "harmed": float((gains < 0).mean()),
        "worst_loss": max(0.0, -float(gains.min())),
    }


def means_over_seeds(results: pd.DataFrame) -> pd.DataFrame:
    """Return one row per label, best first.

    Number of ``seeds``, means over them, and the standard deviations ``accuracy_std``,
    ``accuracy_chosen_std`` and ``new_accuracy_std`` (n-1 in the denominator, NaN for one seed).
    """
    by_method = results.groupby("method", sort=False)
    means = by_method.mean(numeric_only=True).drop(columns="seed")
    means.insert(0, "seeds", by_method.size())
    spread = [name for name in ("accuracy", "accuracy_chosen", "new_accuracy") if name in means]
    spreads = by_method[spread].std().add_suffix("_std")
    for name in spreads:
        before = means.columns.get_loc(str(name).removesuffix("_std"))
        assert isinstance(before, int)
        means.insert(before + 1, str(name), spreads[name])
    return means.sort_values("accuracy", ascending=False, kind="stable")


Answers = dict[int, NDArray[np.bool_]]
"""Which test images a client's model gets right, shape (images,), by partition-id."""


def answers_of(run: Run) -> Answers:
    """Return the clients' answers at the last evaluated round; empty where not recorded.

    Raises `DamagedRunError` if they cannot be read, or do not have the number of right ones that
    the counts say.
    """
    rows = run.last_evaluations
    if not {ANSWERS, "correct", "total"} <= set(rows):
        return {}
    answers: Answers = {}
    recorded = rows.dropna(subset=ANSWERS)
    for partition_id, text, correct, total in recorded[[ANSWERS, "correct", "total"]].itertuples():
        try:
            answers[partition_id] = unpacked_answers(from_text(text), int(total))
            is_right = answers[partition_id].sum() == correct
        except (TypeError, ValueError):
            is_right = False
        if not is_right:
            reason = f"the answers of client {partition_id} do not fit their counts"
            remedy = f"remove the key {ANSWERS} of this line to read the run without them"
            raise damaged(run.path / "clients.jsonl", reason, remedy)
    return answers


def lost_and_won(run: Run, reference: Run | None) -> pd.DataFrame:
    """Return how many answers clients lose and win over a reference.

    By partition-id, ``lost``, the images that only the reference gets right, and ``won``, those
    that only the run does. Clients whose answers cannot be paired are left out.
    """
    own, theirs = answers_of(run), answers_of(reference) if reference else {}
    paired = [n for n in own if n in theirs and len(own[n]) == len(theirs[n])]
    return pd.DataFrame(
        {
            "lost": [float((theirs[n] & ~own[n]).sum()) for n in paired],
            "won": [float((own[n] & ~theirs[n]).sum()) for n in paired],
        },
        index=paired,
        dtype=float,
    )
