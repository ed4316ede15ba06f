"""The table of agreement with public implementations on this page; see `check.py`."""

from collections import defaultdict

from measurements import read_measurements
from tables import markdown

from fedkd_flwr.analysis.significance import effect_of

NAME = "public-implementations/agreement"


def table() -> str:
    """Return both weighted accuracies in percent, and their difference in points by method."""
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for line in read_measurements(NAME):
        pairs[line["method"], line["implementation"]].append((line["theirs"], line["ours"]))
    rows = [
        [f"`{method}`", implementation, *_cells(found)]
        for (method, implementation), found in pairs.items()
    ]
    headings = ["method", "implementation", "theirs:", "ours:", "difference (95% interval):"]
    later = (
        "FedTGP: f5d31b1; MOON, Fed-RoD: 5dd62ab; FedALA: f509232; "
        "APFL, FedBABU, FedBN, FedDyn, FedMRL, FedNTD, pFedGraph: efc2843; "
        "FedAPEN, FedGen: 6e8693b; Selective-FD: c70af27; PrivateKT: 2a9cf28"
    )
    made_by = f"version 0.1.0, commit b00e46a ({later}), on a CPU"
    caption = f"*Seeds 0 to 4; ours made by {made_by}.*"
    return f"{markdown(headings, rows)}\n{caption}\n"


def _cells(found: list[tuple[float, float]]) -> list[str]:
    theirs, ours = (100 * sum(part) / len(found) for part in zip(*found, strict=True))
    effect = effect_of(own - other for other, own in found)
    low, high = 100 * effect.low, 100 * effect.high
    return [
        f"{theirs:.1f}",
        f"{ours:.1f}",
        f"{100 * effect.gain:+.1f} ({low:+.1f} to {high:+.1f})",
    ]
