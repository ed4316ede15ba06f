"""Clients that gave no valid reply: how often they were asked in a run, and failed."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from fedkd_flwr.runs.reading import Run

MOST_NAMED = 5
"""Most failures that a sentence names one by one."""


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
