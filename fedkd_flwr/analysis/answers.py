"""Two models of a client on the same test images: the answers that only one of them gets right."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedkd_flwr.analysis.groups import Groups, each_run
from fedkd_flwr.analysis.reference_runs import References
from fedkd_flwr.analysis.results import last_evaluations
from fedkd_flwr.runs import Run
from fedkd_flwr.runs.reading import damaged
from strategies.core.answers import ANSWERS, from_text, unpacked

Answers = dict[int, NDArray[np.bool_]]
"""Which test images a client's model gets right, shape (images,), by partition-id."""


def answers_of(run: Run) -> Answers:
    """Return the clients' answers at the last evaluated round; empty where not recorded.

    Raises
    ------
    DamagedRunError
        If they cannot be read, or do not have the number of right ones that the counts say.
    """
    rows = last_evaluations(run)
    if not {ANSWERS, "correct", "total"} <= set(rows):
        return {}
    answers: Answers = {}
    recorded = rows.dropna(subset=ANSWERS)
    for partition_id, text, correct, total in recorded[[ANSWERS, "correct", "total"]].itertuples():
        try:
            answers[partition_id] = unpacked(from_text(text), int(total))
            is_right = answers[partition_id].sum() == correct
        except (TypeError, ValueError):
            is_right = False
        if not is_right:
            reason = f"the answers of client {partition_id} do not fit their counts"
            remedy = f"remove the key {ANSWERS} of this line to read the run without them"
            raise damaged(run.path / "clients.jsonl", reason, remedy)
    return answers


def lost_and_won(answers: Answers, reference: Answers) -> dict[int, tuple[int, int]]:
    """Return how many answers clients lose and win over a reference.

    Parameters
    ----------
    answers, reference : dict of int to ndarray
        Of `answers_of`, of two runs on the same split.

    Returns
    -------
    dict of int to tuple of int
        The images that only the reference gets right, and those that only the method does, by
        partition-id. Clients whose answers cannot be paired are left out.
    """
    pairs = {
        n: (own, reference[n])
        for n, own in answers.items()
        if n in reference and len(reference[n]) == len(own)
    }
    return {
        n: (int((theirs & ~own).sum()), int((own & ~theirs).sum()))
        for n, (own, theirs) in pairs.items()
    }


def with_answers(clients: pd.DataFrame, groups: Groups, references: References) -> pd.DataFrame:
    """Return the clients' results with what they lose and win over their reference.

    Parameters
    ----------
    clients : DataFrame
        Of `fedkd_flwr.analysis.results.client_results`.
    groups : mapping of str to list of Run
        Finished runs by label.
    references : References
        What they are compared with.

    Returns
    -------
    DataFrame
        With ``lost`` and ``won``, numbers of images, NaN where a run did not record answers; see
        `lost_and_won`.
    """
    answers = {run.path: answers_of(run) for _, run in each_run(groups)}
    found: dict[tuple[str, int, int], tuple[int, int]] = {}
    for label, run in each_run(groups):
        seed = run.config["seed"]
        reference = references.of(label, seed)
        if reference is None:
            continue
        pairs = lost_and_won(answers[run.path], answers[reference.path])
        found |= {(label, seed, n): numbers for n, numbers in pairs.items()}
    keys = clients[["method", "seed", "partition_id"]].itertuples(index=False, name=None)
    numbers = np.array([found.get(key, (np.nan, np.nan)) for key in keys]).reshape(-1, 2)
    return clients.assign(lost=numbers[:, 0], won=numbers[:, 1])
