"""pFedGraph (Ye et al. 2023): the inferred graph, rounds by hand, and its limits."""

import numpy as np
import pytest
import torch
from by_hand import CHANGES, loss_of, returned_weights, sizes_of, training_data, witnessed
from torch.nn import functional

from strategies.core.plan import RunPlan
from strategies.core.replies import ClientInfo
from strategies.pfedgraph import PFedGraph, PFedGraphSettings, graph_rows, update_cosines

ALPHA, LAMBDA = 0.5, 0.3


@pytest.fixture
def small(small):
    own = {"pfedgraph.size-weight": ALPHA, "pfedgraph.similarity-weight": LAMBDA}
    return {**small, **CHANGES, "strategy": "pfedgraph", **own}


def test_no_other_point_of_the_simplex_is_better():
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(4, 6))
    updates /= np.linalg.norm(updates, axis=1, keepdims=True)
    cosines, shares = updates @ updates.T, rng.dirichlet(np.ones(4))
    others = rng.dirichlet(np.full(4, 0.5), size=20_000)
    for alpha in (0.05, 0.8, 20.0):
        rows = graph_rows(cosines, shares, alpha)
        np.testing.assert_allclose(rows.sum(axis=1), 1)
        assert (rows >= 0).all()
        # The diagonal counts as one, as do cosines above 0.9.
        for row, similar in zip(rows, cosines, strict=True):
            costs = alpha * ((others - shares) ** 2).sum(axis=1) - others @ similar
            assert alpha * ((row - shares) ** 2).sum() - row @ similar <= costs.min() + 1e-9


def test_equal_updates_give_the_shares_and_a_small_alpha_gives_the_most_similar():
    shares = np.array([0.2, 0.3, 0.5])
    np.testing.assert_allclose(graph_rows(np.ones((3, 3)), shares, 0.8), [shares] * 3)
    np.testing.assert_allclose(graph_rows(np.full((3, 3), 0.95), shares, 0.8), [shares] * 3)
    np.testing.assert_allclose(graph_rows(np.eye(3), shares, 1e-3), np.eye(3))


def test_cosines_are_of_updates_and_zero_without_one():
    start = {"weights": np.array([1.0, 2.0], np.float32), "buffers": np.ones(1, np.float32)}
    moves = [[3.0, 4.0], [4.0, 3.0], [0.0, 0.0]]
    models = [{"weights": start["weights"] + move, "buffers": np.full(1, 9.0)} for move in moves]
    expected = [[1, 0.96, 0], [0.96, 1, 0], [0, 0, 0]]
    np.testing.assert_allclose(update_cosines(models, start), expected, atol=1e-6)


@pytest.mark.parametrize("cohort", ["off", "on"])
def test_two_rounds_by_hand(cohort, small, tmp_path):
    run, finished = witnessed(small, tmp_path / "run", cohort=cohort)
    shares = sizes_of(small) / sizes_of(small).sum()
    back, start = returned_weights(run), run.down[1, "train", 0]["weights"]
    sent = [start, start]
    for t in (1, 2):
        for n in (0, 1):
            np.testing.assert_allclose(run.down[t, "train", n]["weights"], sent[n], atol=5e-6)
            center = torch.from_numpy(np.array(sent[n]))
            weights = center.clone()
            for _ in range(3):
                weights.requires_grad_()
                loss = loss_of(weights, *training_data(small, n))
                if t > 1:
                    loss = loss + LAMBDA * functional.cosine_similarity(weights, center, dim=0)
                (step,) = torch.autograd.grad(loss, weights)
                weights = weights.detach() - 0.2 * step
            np.testing.assert_allclose(back[t, n], weights.numpy(), atol=5e-6)
        moved = np.stack([back[t, n] - start for n in (0, 1)])
        cosine = moved[0] @ moved[1] / np.linalg.norm(moved[0]) / np.linalg.norm(moved[1])
        cosine = 1.0 if cosine > 0.9 else cosine
        # On two clients, a = (x, 1 - x): the derivative is zero, and x is clipped.
        own = [np.clip(shares[n] + (1 - cosine) / (4 * ALPHA), 0, 1) for n in (0, 1)]
        graph = np.array([[own[0], 1 - own[0]], [1 - own[1], own[1]]])
        np.testing.assert_allclose(finished.matrices["graph"][t - 1], graph, atol=1e-5)
        sent = [(row @ [back[t, 0], back[t, 1]]).astype(np.float32) for row in graph]


def test_a_client_that_has_not_joined_a_resumed_run_is_mixed_with_nobody():
    strategy = PFedGraph(
        RunPlan(num_clients=3, num_classes=2), PFedGraphSettings(size_weight=ALPHA)
    )
    strategy.state = strategy.begin({"weights": np.zeros(4)})
    models = {n: {"weights": row} for n, row in enumerate(np.eye(3, 4) + 0.1)}
    for n in (0, 2):
        strategy.members.clients[n] = ClientInfo(n, 100 + n, "mlp", num_examples=10 * (n + 1))
    present = graph_rows(
        update_cosines([models[0], models[2]], strategy.state.model), np.array([0.25, 0.75]), ALPHA
    )
    expected = np.eye(3)
    expected[np.ix_([0, 2], [0, 2])] = present
    np.testing.assert_allclose(strategy.weights_among(models), expected)
