"""Methods across published sets, each seed a unit: a table for `check.py`, and figures.

    python docs/results/across.py

writes the figures of the tuned benchmark: the critical-difference diagrams of the comparisons with
one architecture and with mixed ones, and gain against bytes and steps.
"""

from columns import results
from runs import HERE, compared
from tables import caption

from fedkd_flwr.analysis.across import Across, across_of
from fedkd_flwr.plots import plot_gain_against_bytes, plot_ranks
from fedkd_flwr.plots.files import write_figures

SPLITS = ("k-classes-grouped", "dirichlet")
ONE_ARCHITECTURE = [
    f"benchmark-tuned/retuned-{part}{split}" for part in ("", "cifar10-") for split in SPLITS
]
MIXED_ARCHITECTURES = [
    f"benchmark-tuned/retuned-{part}{split}"
    for part in ("mixed-", "cifar10-mixed-")
    for split in SPLITS
]


def table(*names: str) -> str:
    """Return the table of `fedkd compare --across --per-seed` over some sets."""
    groups = {(name,): results(name, {}) for name in names}
    return f"{across(*names).to_markdown()}\n{caption(groups, {}, has_verdicts=False)}\n"


def across(*names: str) -> Across:
    """Return the methods across some sets, each seed a unit."""
    return across_of({name.rpartition("/")[2]: compared(name) for name in names}, per_seed=True)


def main() -> None:
    """Write the figures."""
    figures = [
        ("ranks", plot_ranks(across(*ONE_ARCHITECTURE))),
        ("ranks-mixed", plot_ranks(across(*MIXED_ARCHITECTURES))),
    ]
    for split in SPLITS:
        comparison = compared(f"benchmark-tuned/retuned-{split}")
        figures.append((f"{split}-cost", plot_gain_against_bytes(comparison)))
    for path in write_figures(figures, HERE / "benchmark-tuned"):
        print(path)


if __name__ == "__main__":
    main()
