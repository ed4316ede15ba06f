"""Stored results of two rounds of every method on digits, which refactoring must not change.

``python -m tests.stored_runs METHOD...`` stores the runs of some methods in `STORED`, or of all if
none is named. Replace numbers only if they change on purpose, and say in the commit which and why.
Kernels of another processor round differently: where `kernels` says so, store all runs at the
commit from which a refactoring starts.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import fedkd_flwr
from fedkd_flwr.methods import METHODS
from strategies.core.method_record import Need
from tests.conftest import SMALL

STORED = Path(__file__).parent / "stored_runs.json"
CLIENT_COLUMNS = ("accuracy", "loss", "validation_loss", "numbers_up", "numbers_down")
VARIANT_COLUMNS = (
    *("loss", "validation_loss"),
    *("safeguarded_correct", "private_correct", "safeguard_weight"),
)
ROUND_COLUMNS = ("accuracy_mean", "accuracy_weighted", "loss_mean", "validation_accuracy_mean")
SUPERNET = {
    "models": "darts",
    "supernet-channels": 4,
    "supernet-cells": 3,
    "supernet-nodes": 2,
    "supernet-stem-stride": 2,
    "max-samples": 300,
    "supernet-operations": "none,max_pool_3x3,skip_connect,sep_conv_3x3",
}
SEARCHES = ("fedkma", "fedkma-uniform", "fednas")
PAPER = {
    "kt-pfl.temperature": 10.0,
    "kt-pfl.t-squared": False,
    "kt-pfl.distillation-learning-rate": 0.01,
    "kt-pfl.distillation-epochs": 1,
    "kt-pfl.public-batch-size": 256,
}
FOREST, BOOSTING = "RandomForestClassifier", "GradientBoostingClassifier"
VARIANTS = {
    "cohort": {"cohort": "on"},
    "no momentum": {"momentum": 0.0, "weight-decay": 0.01},
    "adam": {"optimizer": "adam", "learning-rate": 0.003},
    "own weights": {"initial-weights": "own"},
    "choose": {"safeguard": "choose"},
    "blend": {"safeguard": "blend"},
    "forest": {
        "models": f"mlp,sklearn.ensemble:{FOREST}",
        "estimator-options": f"{FOREST} = {{n_estimators = 3, max_depth = 4}}",
    },
    "boosting": {
        "models": f"mlp,sklearn.ensemble:{BOOSTING}",
        "estimator-options": f"{BOOSTING} = {{n_estimators = 2, max_depth = 2}}",
    },
}
"""What differs from a method's plain run, where momentum is 0.9. A cohort rounds differently."""


def has_variant(strategy, variant):
    """Return whether a variant of a method is stored."""
    record = METHODS[strategy].record
    if strategy in SEARCHES and strategy != "fedkma":
        return variant == "cohort"
    if variant in ("forest", "boosting"):
        return record.takes_estimators
    if variant == "adam":
        # Adam amplifies the last digits of FedKD's singular values, which depend on the memory.
        return Need.PLAIN_DESCENT not in record.needs and strategy != "fedkd"
    return variant != "choose" or strategy in ("kt-pfl", "persfl", "fedavg", "fedproto")


def run_names(strategies=METHODS):
    """Return the names of all runs: a method, and a variant of it after a comma."""
    variants = [(name, each) for name in strategies for each in VARIANTS if has_variant(name, each)]
    return [*strategies, *(f"{strategy}, {variant}" for strategy, variant in variants)]


def settings_of(name):
    """Return settings of a small run, with different architectures where the method allows it."""
    strategy, _, variant = name.partition(", ")
    changes = {**VARIANTS[variant], "strategy": strategy} if variant else {"strategy": strategy}
    if strategy in SEARCHES:
        return {**SMALL, **SUPERNET, **changes}
    if strategy == "privatekt":
        changes["soft-predictions.noise-seed"] = 0
    one_model = Need.ONE_ARCHITECTURE in METHODS[strategy].record.needs
    # No batch normalization: with eight samples it amplifies rounding to percents of a loss.
    models = "lenet" if one_model else "mlp,lenet,cnn,lenet"
    size = {"models": "mlp"} if variant else {"models": models, "max-samples": 600}
    return {**SMALL, **PAPER, "fraction-train": 0.75, **size, **changes}


def numbers_of(name, folder, **changes):
    """Run a method, with changed settings if any, and return its numbers, to the last digit."""
    run = fedkd_flwr.run(settings_of(name) | changes, output_dir=Path(folder) / name)
    clients = run.clients.sort_values(["round", "partition_id"])
    is_variant = ", " in name
    by_client = {
        column: [None if value != value else float(value) for value in clients[column]]
        for column in (VARIANT_COLUMNS if is_variant else CLIENT_COLUMNS)
        if column in clients
    }
    if is_variant:
        return {"clients": by_client}
    return {
        "rounds": {column: run.rounds[column].tolist() for column in ROUND_COLUMNS},
        "clients": by_client,
        "matrices": {
            name: [float(value) for value in matrix[-1].ravel()]
            for name, matrix in sorted(run.matrices.items())
        },
    }


def kernels():
    """Return a digest of numbers whose last digits depend on the kernels of PyTorch and NumPy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    images, filters, weights = (
        torch.randn(shape, generator=generator, dtype=torch.float32).requires_grad_()
        for shape in ((8, 3, 28, 28), (6, 3, 5, 5), (6 * 24 * 24, 10))
    )
    features = torch.nn.functional.conv2d(images, filters).flatten(1)
    loss = torch.log_softmax(features @ weights, dim=1).square().mean()
    found = [gradient.numpy() for gradient in torch.autograd.grad(loss, (images, filters, weights))]
    torch.set_num_threads(threads)
    for dtype in (np.float32, np.float64):
        numbers = np.random.default_rng(0).normal(size=(20, 50_000)).astype(dtype)
        found += [np.exp(numbers), np.log(np.abs(numbers)), numbers @ numbers.T]
    return hashlib.sha256(b"".join(one.tobytes() for one in found)).hexdigest()


def main(strategies):
    torch.set_num_threads(1)
    here = {"torch": torch.__version__, "kernels": kernels()}
    kept = json.loads(STORED.read_text()) if strategies else {**here, "runs": {}}
    if {name: kept[name] for name in here} != here:
        sys.exit("other kernels made the stored runs: name no method, to store all again")
    with tempfile.TemporaryDirectory() as folder:
        new = {name: numbers_of(name, folder) for name in run_names(strategies or METHODS)}
    runs = {**kept["runs"], **new}
    stored = [
        f"{json.dumps(name)}: {json.dumps(runs[name])}" for name in run_names() if name in runs
    ]
    STORED.write_text(json.dumps(here)[:-1] + ', "runs": {\n' + ",\n".join(stored) + "\n}}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
