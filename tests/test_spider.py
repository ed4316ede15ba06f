"""SPIDER (Mushtaq et al. 2021): two supernets per client, the term between them, and pruning."""

import numpy as np
import pytest
import torch
from by_hand import TWO_CLIENTS, logits, training_data
from helpers import SMALLEST_SUPERNET, Witness, client_of, run_with
from torch.nn import functional

from fedkd_flwr.clients.spider import PRUNED, most_needed
from fedkd_flwr.training.loop import Evaluation, evaluate, refresh_statistics
from strategies.spider import SpiderSettings


@pytest.fixture
def small(small):
    return {**small, **TWO_CLIENTS, "strategy": "spider"}


@pytest.fixture
def tiny(small):
    """The smallest supernet, with two edges of four operations a cell."""
    size = {**SMALLEST_SUPERNET, "batch-size": 16, "max-samples": 100}
    return {**small, **size, "spider.prune-from": 1, "spider.prune-every": 1}


def personal_model(grid, partition_id):
    """Return what a client keeps, flat, in the order of its state dict."""
    record = grid.contexts[partition_id].state.array_records["model"]
    return np.concatenate([array.numpy().ravel() for array in record.values()])


def tied(start, center, images, labels, weight, rate, steps):
    """Take steps ``v - rate * (grad F(v) + weight * (v - w))``."""
    center, personal = torch.tensor(center), torch.tensor(start)
    for _ in range(steps):
        personal.requires_grad_()
        loss = functional.cross_entropy(logits(personal, images), labels)
        (gradient,) = torch.autograd.grad(loss, personal)
        personal = personal.detach()
        personal = personal - rate * (gradient + weight * (personal - center))
    return personal.numpy()


def test_the_personal_model_persists_and_is_regularized_towards_the_received_one(small, tmp_path):
    small |= {"local-epochs": 2, "spider.proximal-weight": 1.5}
    personal = {}
    for server_round in (1, 2):
        witness = Witness()
        folder = tmp_path / str(server_round)
        _, grid = run_with(witness, small, folder, **{"num-server-rounds": server_round})
        for n in (0, 1):
            center = witness.down[server_round, "train", n]["weights"]
            start = personal.get(n, center)
            expected = tied(start, center, *training_data(small, n), 1.5, 0.2, steps=2)
            untied = tied(start, center, *training_data(small, n), 0.0, 0.2, steps=2)
            assert np.abs(untied - expected).max() > 1e-3
            kept = personal_model(grid, n)
            np.testing.assert_allclose(kept, expected, atol=1e-6)
            personal[n] = kept


def test_a_client_is_evaluated_with_its_personal_model(small, tmp_path):
    run, grid = run_with(Witness(), small, tmp_path / "run")
    for n in (0, 1):
        client = client_of({**small, "strategy": "fedavg"}, n)
        received = {"weights": personal_model(grid, n)}
        expected = client.session.evaluate_model(received, 2).metrics["own-test-loss"]
        loss = run.clients.query("round == 2")["loss"].iloc[n]
        assert loss == pytest.approx(expected, abs=1e-6)


def test_the_operation_is_kept_whose_absence_costs_most():
    without = [Evaluation(9, 10, 0.5), Evaluation(6, 10, 0.9), Evaluation(6, 10, 1.1)]
    assert most_needed(without) == 2
    assert most_needed(without[:2]) == 1


@pytest.mark.parametrize(
    ("settings", "edges", "rounds", "expected"),
    [
        ({"prune_from": 3, "prune_every": 2}, 4, 9, [3, 5, 7, 9]),
        # A fifth of 20 rounds is 4; the other 17 are five times 3 and two more.
        ({}, 5, 20, [4, 7, 10, 13, 16]),
        ({}, 14, 50, [*range(10, 37, 2)]),
        # A fifth of 8 rounds would leave too few.
        ({}, 8, 8, [1, 2, 3, 4, 5, 6, 7, 8]),
        ({"prune_from": 6}, 2, 10, [6, 8]),
        ({"prune_every": 1}, 2, 10, [2, 3]),
    ],
)
def test_edges_are_decided_in_the_rounds_of_the_schedule(settings, edges, rounds, expected):
    assert list(SpiderSettings(**settings).schedule(edges, rounds)) == expected


def test_a_client_that_missed_rounds_prunes_what_is_due(tiny):
    tiny |= {"num-server-rounds": 6, "supernet-nodes": 2, "spider.prune-from": 2}
    client = client_of(tiny)

    def undecided():
        alphas = client.model.alpha_normal, client.model.alpha_reduce
        return [int(((alpha > PRUNED).sum(dim=1) > 1).sum()) for alpha in alphas]

    # Five edges are due in rounds 2 to 6.
    for server_round, left in ((1, 5), (4, 2), (4, 2), (6, 0)):
        client.prune(server_round)
        assert undecided() == [left, left]


def test_a_pruned_edge_keeps_the_operation_that_validation_needs_most(tiny):
    client = client_of(tiny)
    alpha = client.model.alpha_normal.requires_grad_(False)
    before = alpha.clone()
    data, results = client.data, []
    for left_out in range(4):
        alpha[1, left_out] = PRUNED
        refresh_statistics(client.model, data.train_images)
        results.append(evaluate(client.model, data.validation_images, data.validation_labels))
        alpha[1] = before[1]
    kept = min(range(4), key=lambda k: (results[k].correct, -results[k].loss))
    client.decide(alpha, 1)
    expected = torch.zeros(4)
    expected[kept] = 1.0
    assert torch.equal(alpha.softmax(dim=1)[1], expected)
    assert torch.equal(alpha[0], before[0])


def test_a_run_prunes_one_edge_of_each_cell_a_round_and_sends_none_of_it(tiny, tmp_path):
    tiny["num-server-rounds"] = 3
    witness = Witness()
    run, grid = run_with(witness, tiny, tmp_path / "run")
    # Two edges of four operations in each of the two kinds of cell; one remains of each.
    operations = run.clients.pivot(index="round", columns="partition_id", values="operations")
    assert operations.to_numpy().tolist() == [[10, 10], [4, 4], [4, 4]]
    for server_round in (1, 2, 3):
        for n in (0, 1):
            assert witness.up[server_round, "train", n].keys() == {"weights", "buffers", "alphas"}
            assert (witness.up[server_round, "train", n]["alphas"] > -1).all()
    for n in (0, 1):
        record = grid.contexts[n].state.array_records["model"]
        kept = [record[name].numpy() > PRUNED for name in ("alpha_normal", "alpha_reduce")]
        assert all((rows.sum(axis=1) == 1).all() for rows in kept)
