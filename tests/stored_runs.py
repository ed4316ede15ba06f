"""Stored results of two rounds of every method on digits, which refactoring must not change.

``python -m tests.stored_runs METHOD...`` stores the runs of some methods in `STORED`, or of all if
none is named. Replace numbers only if they change on purpose, and say in the commit which and why.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

import fedkd_flwr
from fedkd_flwr.methods import METHODS
from tests.conftest import SMALL

STORED = Path(__file__).parent / "stored_runs.json"
CLIENT_COLUMNS = ("accuracy", "loss", "validation_loss", "numbers_up", "numbers_down")
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


PAPER = {
    "kt-pfl.temperature": 10.0,
    "kt-pfl.t-squared": False,
    "kt-pfl.distillation-learning-rate": 0.01,
    "kt-pfl.distillation-epochs": 1,
    "kt-pfl.public-batch-size": 256,
}


def settings_of(strategy):
    """Return settings of a small run, with different architectures where the method allows it."""
    if strategy in ("fedkma", "fedkma-uniform", "fednas"):
        return {**SMALL, **SUPERNET, "strategy": strategy}
    one_model = METHODS[strategy].strategy.needs_one_model
    # No batch normalization: with eight samples it amplifies rounding to percents of a loss.
    models = "lenet" if one_model else "mlp,lenet,cnn,lenet"
    changes = {"models": models, "fraction-train": 0.75, "max-samples": 600}
    return {**SMALL, **PAPER, **changes, "strategy": strategy}


def numbers_of(strategy, folder, **changes):
    """Run a method, with changed settings if any, and return its numbers, to the last digit."""
    run = fedkd_flwr.run(settings_of(strategy) | changes, output_dir=Path(folder) / strategy)
    clients = run.clients.sort_values(["round", "partition_id"])
    kept = [name for name in CLIENT_COLUMNS if name in clients]
    return {
        "rounds": {name: run.rounds[name].tolist() for name in ROUND_COLUMNS},
        "clients": {
            name: [None if value != value else float(value) for value in clients[name]]
            for name in kept
        },
        "matrices": {
            name: [float(value) for value in matrix[-1].ravel()]
            for name, matrix in sorted(run.matrices.items())
        },
    }


def kernels():
    """Return a number whose last digits depend on PyTorch's kernels with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    images, filters, weights = (
        torch.randn(shape, generator=generator, dtype=torch.float32).requires_grad_()
        for shape in ((8, 3, 28, 28), (6, 3, 5, 5), (6 * 24 * 24, 10))
    )
    features = torch.nn.functional.conv2d(images, filters).flatten(1)
    loss = torch.log_softmax(features @ weights, dim=1).square().mean()
    gradients = torch.autograd.grad(loss, (images, filters, weights))
    total = float(sum(gradient.double().square().sum() for gradient in gradients))
    torch.set_num_threads(threads)
    return total


def main(strategies):
    torch.set_num_threads(1)
    here = {"torch": torch.__version__, "kernels": kernels()}
    kept = json.loads(STORED.read_text()) if strategies else {**here, "runs": {}}
    if {name: kept[name] for name in here} != here:
        sys.exit("other kernels made the stored runs: name no method, to store all again")
    with tempfile.TemporaryDirectory() as folder:
        new = {name: numbers_of(name, folder) for name in strategies or METHODS}
    runs = {**kept["runs"], **new}
    stored = {**here, "runs": {name: runs[name] for name in METHODS if name in runs}}
    STORED.write_text(json.dumps(stored, indent=0) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
