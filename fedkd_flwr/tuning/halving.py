"""Synchronous successive halving: a bracket of trials starts together, and its best continue.

All trials of a bracket are judged at a rung before any continues, so each is compared with all
others of its bracket. Judging trials as they come would compare early ones with few others, and
its cost would depend on their order.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from fedkd_flwr.config import RunConfig, read_config
from fedkd_flwr.data.clients import load_client
from fedkd_flwr.engines.starting import with_natural_clients
from fedkd_flwr.training.loop import batch_starts
from strategies.core.plan import sample_clients

BRACKET = 8
"""Trials of a full bracket."""

EARLY_RUNGS = ((Fraction(1, 18), Fraction(5, 8)), (Fraction(7, 18), Fraction(3, 5)))
"""Share of the rounds at which a bracket is judged, and share of its trials that continue.

Of eight trials five continue, and three have all rounds. Learning curves cross late, so that three
finalists miss less than two that were chosen after more rounds, at the same cost.
"""


def rungs_of(rounds: int, evaluate_every: int) -> dict[int, Fraction]:
    """Return the rounds at which trials are judged, and the share of them that continues."""
    rungs: dict[int, Fraction] = {}
    for when, kept in EARLY_RUNGS:
        rung = max(1, int(rounds * when / evaluate_every)) * evaluate_every
        if rung < rounds:
            rungs[rung] = rungs.get(rung, Fraction(1)) * kept
    return {**rungs, rounds: Fraction(1)}


def ranked(accuracies: Mapping[int, float]) -> list[int]:
    """Return the trials of a rung by falling accuracy, the earlier of equals first."""
    return sorted(accuracies, key=lambda number: (-accuracies[number], number))


def number_continuing(number: int, share: Fraction) -> int:
    """Return how many trials of a rung continue, at least one."""
    return max(1, round(number * share))


def bracket_cost(size: int, continuing: Sequence[Fraction], costs: Sequence[float]) -> float:
    """Return what a bracket costs."""
    total, before, alive = 0.0, 0.0, size
    for share, cost in zip(continuing, costs, strict=True):
        total += alive * (cost - before)
        before, alive = cost, number_continuing(alive, share)
    return total


def largest_bracket(continuing: Sequence[Fraction], costs: Sequence[float], left: float) -> int:
    """Return the size of the largest bracket that costs at most what is left; 0 for none."""
    sizes = range(BRACKET, 0, -1)
    return next((size for size in sizes if bracket_cost(size, continuing, costs) <= left), 0)


BASELINE = "local"
"""Training alone, which is always a possible answer."""


def steps_of_local(settings: Mapping[str, Any], seed: int) -> int:
    """Return the gradient steps that all clients of `local` take in a run, without training."""
    configuration = read_config({**settings, "strategy": BASELINE, "seed": seed})
    run = with_natural_clients(configuration).run
    plan = run.plan
    trained = sorted({*range(plan.num_clients)} - {*plan.new_client_ids})
    by_client = {n: _steps_of_round(run, n) for n in trained}
    return sum(
        by_client[n]
        for server_round in range(1, plan.num_server_rounds + 1)
        for n in sample_clients(trained, plan.sample_size, seed, server_round)
    )


def _steps_of_round(run: RunConfig, partition_id: int) -> int:
    """Return the steps of a client in a round: tau random batches if set, else E epochs."""
    training = run.training
    if training.local_iterations:
        return training.local_iterations
    samples = len(load_client(run.data_plan, partition_id).train_labels)
    return training.local_epochs * len(batch_starts(samples, training.batch_size))
