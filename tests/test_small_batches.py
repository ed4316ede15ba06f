"""No step of a node that does not trust the server mixes fewer samples than min-class-count.

Not even in an approved run, whose settings need not lie in their ranges on nodes.
"""

import math

import pytest
import torch
from flwr.app import Context, RecordDict

from fedkd_flwr.bundles.approved_runs import approve_run
from fedkd_flwr.client_app import build_client
from fedkd_flwr.config import read_config
from fedkd_flwr.training.loop import joined

SMALLEST = 10


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([[0, 1, 2], [3, 4], [5, 6, 7], [8]], [[0, 1, 2], [3, 4, 5, 6, 7, 8]]),
        ([[0], [0], [0], [1], [2], [3, 4, 5]], [[0, 0, 0, 1, 2], [3, 4, 5]]),
        ([[0, 1], [1]], []),
        ([], []),
    ],
)
def test_batches_with_few_different_samples_are_joined(batches, expected):
    found = joined([torch.tensor(batch) for batch in batches], smallest=3)
    assert [batch.tolist() for batch in found] == expected


def test_batches_that_are_large_enough_stay_as_they_are():
    batches = [torch.arange(start, start + 4) for start in (0, 4, 8)]
    assert all(map(torch.equal, joined(batches, smallest=4), batches))


def client_on(node_config, small, approved, strategy, **changes):
    silo = {"partition": "iid", "client-split": "60/20/20", "held-out-size": 60}
    silo |= {"max-samples": 460, "models": "lenet", "batch-size": 4, "public-size": 40}
    run_config = read_config({**small, **silo, "strategy": strategy, **changes}).flat()
    approve_run(run_config, approved)
    node_config = {"partition-id": 1, "epsilon-budget": math.inf, **node_config}
    node_config["approved-runs"] = str(approved)
    return build_client(Context(1, 1, node_config, RecordDict(), run_config))


@pytest.mark.parametrize("strategy", ["local", "moon", "pfedme", "per-fedavg", "scaffold"])
@pytest.mark.parametrize("changes", [{"local-epochs": 2}, {"local-iterations": 7}])
def test_private_batches_of_a_node(strategy, changes, small, tmp_path):
    guarded = {"trust-server": False, "client-split": "any", "min-class-count": SMALLEST}
    sizes = []
    for node in ({"trust-server": True}, guarded):
        client = client_on(node, small, tmp_path / "approved", strategy, **changes)
        sizes.append([len(batch[0]) for batch in client.private_batches(1)])
    assert max(sizes[0]) <= 5
    assert min(sizes[1]) >= SMALLEST


def test_fine_tuning_of_a_node(small, tmp_path, monkeypatch):
    node, changes = {"trust-server": False}, {"fine-tune-epochs": 1}
    client = client_on(node, small, tmp_path / "approved", "local", **changes)
    seen = []
    see = lambda model, loss, optimizer, batches: seen.extend(batches)  # noqa: E731
    monkeypatch.setattr("fedkd_flwr.clients.evaluating.train_on", see)
    client.session.prepared({}, 1)
    assert seen and min(len(images) for images, _ in seen) >= SMALLEST
