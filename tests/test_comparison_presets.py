"""Presets for comparisons measure each client on at least 1,000 test images."""

from pathlib import Path

import numpy as np
import pytest

from fedkd_flwr.config import read_config
from fedkd_flwr.config.toml_files import read_toml
from fedkd_flwr.data.partitioners import partition_indices
from fedkd_flwr.data.splits import split_client

COMPARE = Path(__file__).parent.parent / "conf" / "compare"


@pytest.mark.parametrize("partition", ["k-classes-grouped", "dirichlet"])
@pytest.mark.parametrize("preset", ["fashion-mnist-same", "cifar10-mixed"])
@pytest.mark.parametrize("seed", [0, 11])
def test_test_splits_are_large_and_training_splits_small(preset, partition, seed):
    settings = {**read_toml(COMPARE / f"{preset}.toml"), "partition": partition, "seed": seed}
    plan = read_config(settings).run.data_plan
    # Ten classes of equal size, as in both data sets.
    private = plan.settings.max_samples - plan.settings.num_held_out
    labels = np.arange(private) % 10
    train, test = [], []
    for n, own in enumerate(partition_indices(labels, plan.settings, plan.num_clients, seed)):
        parts = split_client(labels[own], plan.settings.client_split, seed, n)
        train.append(len(parts[0]))
        test.append(len(parts[2]))
    assert min(test) >= 1000
    assert 55 <= np.mean(train) <= 65


def test_presets_of_one_data_set_have_the_same_splits():
    keys = ("max-samples", "alpha", "minimum-size", "client-split", "held-out-size", "num-clients")
    for dataset in ("fashion-mnist", "cifar10"):
        same, mixed = (read_toml(COMPARE / f"{dataset}-{kind}.toml") for kind in ("same", "mixed"))
        assert [same[key] for key in keys] == [mixed[key] for key in keys]
