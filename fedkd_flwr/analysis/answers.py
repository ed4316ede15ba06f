"""Two models of a client on the same test images: the answers that only one of them gets right."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedkd_flwr.runs import Run
from fedkd_flwr.runs.reading import damaged
from strategies.core.answers import ANSWERS, from_text, unpacked_answers

Answers = dict[int, NDArray[np.bool_]]
"""Which test images a client's model gets right, shape (images,), by partition-id."""


def answers_of(run: Run) -> Answers:
    """Return the clients' answers at the last evaluated round; empty where not recorded.

    Raises
    ------
    DamagedRunError
        If they cannot be read, or do not have the number of right ones that the counts say.
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

    Parameters
    ----------
    run : Run
        The run.
    reference : Run or None
        A run on the same split, if there is one.

    Returns
    -------
    DataFrame
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
