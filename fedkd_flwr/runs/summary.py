"""What a run says of itself: ``config.json``, ``summary.json``, and which clients failed."""

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fedkd_flwr.files import now
from fedkd_flwr.runs.continuing import received_by
from fedkd_flwr.runs.provenance import digests_of_code, provenance
from fedkd_flwr.runs.reading import Run
from strategies.core.evaluations import Row, accuracy_statistics
from strategies.core.metrics import FINE_TUNING_STEPS, GRADIENT_STEPS

if TYPE_CHECKING:
    from fedkd_flwr.config import Configuration

NEW = "new_"  # prefix of a round's columns about new clients

COUNTED = ("numbers_up", "numbers_down", "numbers_down_broadcast", "bytes_up", "bytes_down")
"""Traffic columns that are summed over rounds."""


def describe_run(configuration: "Configuration") -> dict[str, Any]:
    """Return what ``config.json`` holds: the run config, and what made the run besides it."""
    return {
        "id": uuid.uuid4().hex,
        "config": configuration.flat(),
        "code": digests_of_code(configuration.flat()),
        **provenance(configuration.run.server_device),
        "started": now(),
    }


def describe_leg(
    configuration: "Configuration", after_round: int, changes: Mapping[str, tuple[Any, Any]]
) -> dict[str, Any]:
    """Return what ``config.json`` holds of a continuation: code, packages, machine, settings."""
    return {
        "after_round": after_round,
        "started": now(),
        "changes": dict(changes),
        "code": digests_of_code(configuration.flat()),
        **provenance(configuration.run.server_device),
    }


def summarize(run: Run, seconds: float) -> dict[str, Any]:
    """Return the content of ``summary.json``.

    Accuracy is reported at the last round. With validation data, it is also reported at the round
    with the best mean validation accuracy, the earliest of equals. The best test round is never
    reported. The seconds are those of all processes that continued the run.
    """
    rows = run.round_rows
    evaluated = [row for row in rows if row["accuracy_mean"] is not None]
    every = run.config.get("evaluate-every", 1)
    # A run that was extended evaluated its former last round in addition.
    due = [row for row in evaluated if row["round"] % every == 0 or row is rows[-1]]
    validated = [row for row in due if row["validation_accuracy_mean"] is not None]
    # `max` returns the first of equals.
    best = max(validated, key=lambda row: row["validation_accuracy_mean"], default=None)
    return {
        "strategy": run.config["strategy"],
        "rounds": rows[-1]["round"],
        "stopped_early": rows[-1]["round"] < run.config["num-server-rounds"],
        "last_round": _result(evaluated[-1]) if evaluated else None,
        "validation_round": _result(best) if best else None,
        **{name: sum(row[name] for row in rows) for name in [*COUNTED, "failures"]},
        **_gradient_steps(rows, evaluated),
        "new_clients": _of_new_clients(rows[-1]) or _of_newcomers(run),
        "matrices": run.matrix_names,
        "seconds": round(seconds, 3),
    }


def prefers_distilled(run: Run) -> bool:
    """Return whether validation data prefer the clients' models after their last distillation."""
    last = run.round_rows[-1]["round"]
    rows = [row for row in run.client_rows if row["round"] == last and "accuracy" in row]
    gains = [
        row["distilled_validation_accuracy"] - row["validation_accuracy"]
        for row in rows
        if {"distilled_validation_accuracy", "validation_accuracy"} <= row.keys()
    ]
    return len(gains) == len(rows) and sum(gains) > 0


def _gradient_steps(rows: list[Row], evaluated: list[Row]) -> dict[str, int]:
    """Return the steps that the models of the last evaluation took; nothing of earlier code."""
    column = GRADIENT_STEPS.column
    if not all(column in row for row in rows):
        return {}
    fine_tuning = sum(row.get(FINE_TUNING_STEPS.column, 0) for row in evaluated[-1:])
    return {column: sum(row[column] for row in rows) + fine_tuning}


def _of_new_clients(row: Row) -> Row | None:
    """Return a round's values about new clients without the prefix; None without new clients."""
    own = {name.removeprefix(NEW): value for name, value in row.items() if name.startswith(NEW)}
    return {"round": row["round"], **own} if own else None


def _of_newcomers(run: Run) -> Row | None:
    """Return statistics over the clients that joined after the end; None without any."""
    rows = received_by(run)
    if not rows:
        return None
    evaluated = [row for row in rows if row.get("accuracy") is not None]
    counts = {"clients": len(evaluated), "failures": len(rows) - len(evaluated)}
    return {"round": rows[-1]["round"], **accuracy_statistics(evaluated), **counts}


def _result(row: Row) -> dict[str, float | None]:
    return {
        name: None if value is None else float(value)
        for name, value in row.items()
        if name in ("round", "loss_mean") or name.startswith("accuracy")
    }


MOST_NAMED = 5  # most failures that a sentence names one by one


def failed_rounds(run: Run) -> dict[int, tuple[int, int]]:
    """Return in how many rounds each client failed, and was asked, of those that failed."""
    asked, failed = Counter[int](), Counter[int]()
    for row in run.client_rows:
        has_failed = isinstance(row.get("failure"), str)
        failed[row["partition_id"]] += has_failed
        asked[row["partition_id"]] += has_failed or row.get("numbers_down") is not None
    return {n: (count, asked[n]) for n, count in sorted(failed.items()) if count}


def failures_in_words(runs: Iterable[Run], only_silent: bool = False) -> str:
    """Return which clients gave no valid reply, and how often; empty if all did.

    Such as ``client 0 gave no valid reply in 2 of 2 rounds of seeds 0, 2``. With `only_silent`,
    clients that replied in some round are left out.
    """
    every = list(runs)
    seeds: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    for run in every:
        for n, (failed, asked) in failed_rounds(run).items():
            if failed == asked or not only_silent:
                seeds[n, failed, asked].append(str(run.config["seed"]))
    named = []
    for (n, failed, asked), own in sorted(seeds.items())[:MOST_NAMED]:
        of_seeds = f" of seed{'s' * (len(own) > 1)} {', '.join(own)}" if len(every) > 1 else ""
        rounds = "round" if asked == 1 else "rounds"
        named.append(f"client {n} gave no valid reply in {failed} of {asked} {rounds}{of_seeds}")
    if len(seeds) > MOST_NAMED:
        named.append(f"and so on, {len(seeds)} in all")
    return ", ".join(named)
