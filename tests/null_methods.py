"""Methods without any effect: `local` with its private batches in other orders.

``python -m tests.null_methods`` stores their accuracies in `STORED`. It prints how often their
comparisons make a false claim, and how often a planted gain is found, for
``docs/explanation/evaluation-protocol.md``.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import fedkd_flwr
from fedkd_flwr.analysis.significance import Outcome, effects_of

SETTINGS = {
    "dataset": "digits",
    "strategy": "local",
    "models": "mlp",
    "num-clients": 8,
    "client-split": "50/0/50",
    "held-out-size": 0,
    "public-dataset": "none",
    "num-server-rounds": 2,
    "evaluate-every": 2,
    "local-epochs": 5,
    "batch-size": 32,
    "learning-rate": 0.02,
    "record-answers": False,
    "device": "cpu",
    "torch-threads": 1,
    "cohort": "on",
}
"""A small run; its accuracies differ between batch orders by about a point."""

SEEDS, ORDERS = 20, 8
"""Runs: one for each seed and batch order."""

METHODS = ORDERS - 1
"""Pseudo-methods of a table; one more order is the reference."""

STORED = Path(__file__).parent / "null_methods.json"
"""Accuracies of `SEEDS` times `ORDERS` runs."""


def accuracies(seeds=SEEDS, orders=ORDERS):
    """Run `local`, and return its mean accuracies over clients, shape (seeds, orders)."""
    return np.array([[accuracy(seed, order) for order in range(orders)] for seed in range(seeds)])


def stored_accuracies():
    return np.array(json.loads(STORED.read_text()))


def accuracy(seed, order):
    """Run `local` with a seed and a batch order, and return its mean accuracy over clients."""
    with tempfile.TemporaryDirectory() as folder:
        changes = {"seed": seed, "batch-order": order}
        run = fedkd_flwr.run({**SETTINGS, **changes}, output_dir=Path(folder) / "run")
        return run.summary["last_round"]["accuracy_mean"]


def tables_of(found, seeds, tables, generator):
    """Yield the gains of pseudo-methods, shape (methods, seeds), in tables drawn from runs.

    A table has its seeds without repetition. In each of them its reference and its methods are
    batch orders in random places, since orders of different seeds have nothing in common.
    """
    for _ in range(tables):
        chosen = generator.choice(len(found), seeds, replace=False)
        shuffled = generator.permuted(found[chosen], axis=1)
        yield (shuffled[:, 1:] - shuffled[:, :1]).T


def claims(gains):
    effects = effects_of({str(m): own for m, own in enumerate(gains)})
    return sum(effect.outcome is not Outcome.NOT_SHOWN for effect in effects.values())


def false_claims(found, seeds, tables):
    """Return the share of tables with any claim, where no method has an effect."""
    generator = np.random.default_rng(seeds)
    return np.mean([claims(own) > 0 for own in tables_of(found, seeds, tables, generator)])


def found_gains(found, gain, seeds, tables, methods):
    """Return how often a planted gain of one of some methods is found, and the gains' deviation.

    Parameters
    ----------
    found : array
        Of `accuracies`.
    gain : float
        Is added to the accuracies of the first method, part of 1.
    seeds, tables, methods : int
        Seeds and methods of a table, and number of tables.
    """
    generator = np.random.default_rng(seeds)
    shown, deviations = [], []
    for own in tables_of(found, seeds, tables, generator):
        planted = own[:methods].copy()
        planted[0] += gain
        effect = effects_of({str(m): values for m, values in enumerate(planted)})["0"]
        shown.append(effect.outcome is Outcome.BETTER)
        deviations.append(effect.deviation)
    return float(np.mean(shown)), float(np.sqrt(np.mean(np.square(deviations))))


def main(seeds, orders, tables=200):
    """Print the measured shares of false claims and of gains that are found."""
    found = accuracies(seeds, orders)
    if found.shape == (SEEDS, ORDERS):
        rows = ",\n".join(json.dumps(row) for row in found.tolist())
        STORED.write_text(f"[{rows}]\n")
    print(f"{found.size} runs, accuracy {found.mean():.1%}")
    for number in (3, 5, 10):
        share = false_claims(found, number, tables)
        groups = [found[i : i + number] for i in range(0, len(found) - number + 1, number)]
        own = [false_claims(group, number, tables // 5) for group in groups]
        error = np.std(own, ddof=1) / np.sqrt(len(own))
        print(f"{number} seeds: false claims in {share:.1%} ± {error:.1%} of {tables} tables")
    for methods in (1, orders - 1):
        share, deviation = found_gains(found, 0.02, 10, tables, methods)
        points = f"{100 * deviation:.2f} points"
        print(f"{methods} methods: 2 points found in {share:.1%}, deviation of gains {points}")


if __name__ == "__main__":
    main(*(map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (SEEDS, ORDERS)))
