"""KT-pFL's mathematics against independent derivations."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import client_of, random_simplex, reply_with
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from strategies.core.plan import RunPlan
from strategies.core.probabilities import normalized_rows, project_onto_simplex
from strategies.core.replies import ClientInfo
from strategies.fedmd import FedMD
from strategies.kt_pfl import KTpFL, knowledge_gradient
from strategies.sim_pfl import (
    SimPFL,
    TopKPFL,
    cosine_similarities,
    min_max_scaled_rows,
    top_k_weights,
)


def strategy_with_clients(kind=KTpFL, num_clients=4, samples=6, classes=3, **settings):
    plan = RunPlan(num_clients=num_clients, num_classes=classes, public_size=samples)
    strategy = kind(plan, kind.record.settings_type(**settings))
    strategy.state = strategy.begin({})
    strategy.members.clients = {
        n: ClientInfo(n, 100 + n, "lenet", num_examples=10 * (n + 1)) for n in range(num_clients)
    }
    return strategy


def predicting(predictions):
    return reply_with({"predictions": predictions})


@pytest.mark.parametrize("seed", range(5))
def test_gradient_equals_autograd(seed):
    rng = np.random.default_rng(seed)
    clients, samples, classes = 6, 40, 7
    predictions = random_simplex(rng, clients, samples, classes)
    coefficients = random_simplex(rng, clients, clients)
    shares = random_simplex(rng, clients)

    c = torch.tensor(coefficients, requires_grad=True)
    s = torch.tensor(predictions)
    # Written pair by pair, as Eq. 4 reads, with none of the matrix form under test.
    loss = torch.zeros((), dtype=torch.float64)
    for n in range(clients):
        teacher = sum(c[n, m] * s[m] for m in range(clients))
        loss = loss + shares[n] * (teacher * (teacher.log() - s[n].log())).sum()
    loss.backward()

    np.testing.assert_allclose(
        knowledge_gradient(coefficients, predictions, shares), c.grad.numpy(), rtol=1e-6
    )


def test_whole_step_equals_autograd_and_projection():
    rng = np.random.default_rng(1)
    strategy = strategy_with_clients(num_clients=5, rho=0.7, coefficient_learning_rate=0.01)
    predictions = random_simplex(rng, 5, 6, 3)
    shares = np.array([10, 20, 30, 40, 50]) / 150
    start = random_simplex(rng, 5, 5)

    c = torch.tensor(start, requires_grad=True)
    s = torch.tensor(predictions)
    teachers = torch.einsum("nm,mpk->npk", c, s)
    divergence = (teachers * (teachers / s).log()).sum(dim=(1, 2))
    loss = (torch.tensor(shares) * divergence).sum() + 0.7 * ((c - 1 / 5) ** 2).sum()
    loss.backward()
    stepped = (c - 0.01 * c.grad).detach().numpy()
    expected = project_onto_simplex(stepped, np.ones(5))

    np.testing.assert_allclose(
        strategy.updated_block(start, predictions, shares), expected, rtol=1e-6
    )


def test_the_released_rule_scales_the_gradients_of_squared_errors(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "results" / "sweeps")
    from released_rule import ReleasedKTpFL

    rng = np.random.default_rng(3)
    s, c = random_simplex(rng, 4, 30, 5), random_simplex(rng, 4, 4)
    strategy = strategy_with_clients(ReleasedKTpFL, rho=0.6)
    found = strategy.updated_block(c, s, None)
    for n, row in enumerate(found):
        weights = torch.tensor(c[n], requires_grad=True)
        error = torch.tensordot(weights, torch.tensor(s), 1) - torch.tensor(s[n])
        (error.square().mean() + 0.6 * (weights - 1 / 4).square().mean()).backward()
        gradient = weights.grad.numpy()
        # The logarithm undoes the softmax but for a constant.
        step = c[n] - np.log(row) / 5
        scales = (step - step.mean()) / (gradient - gradient.mean())
        power = np.log(scales.mean()) / np.log(5)
        assert scales == pytest.approx(scales.mean()) and power == pytest.approx(round(power))
        assert 0.002 < scales.mean() * np.abs(gradient).mean() <= 0.05


def test_the_step_of_some_weighs_them_by_their_share_of_all_samples():
    predictions = random_simplex(np.random.default_rng(4), 2, 6, 3)
    strategy = strategy_with_clients(rho=0.0, coefficient_learning_rate=0.1)
    strategy.state = strategy.aggregate(
        1, {0: predicting(predictions[0]), 2: predicting(predictions[1])}
    )
    # Clients 0 and 2 have 10 and 30 of 100 samples, and half of the mass of their rows.
    gradient = knowledge_gradient(np.full((2, 2), 0.5), predictions, np.array([0.1, 0.3]) / 0.5)
    expected = project_onto_simplex(0.25 - 0.1 * gradient, np.array([0.5, 0.5]))
    found = strategy.state.coefficients.at([0, 2], [0, 2])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_step_does_not_depend_on_the_number_of_public_samples():
    """It is the expectation over mini-batches of Eq. 7, so a set repeated is the set itself."""
    rng = np.random.default_rng(2)
    few = random_simplex(rng, 4, 8, 3)
    many = np.concatenate([few] * 5, axis=1)
    start, shares = random_simplex(rng, 4, 4), random_simplex(rng, 4)
    steps = [
        strategy_with_clients(samples=predictions.shape[1], coefficient_batch_size=8).updated_block(
            start, predictions, shares
        )
        for predictions in (few, many)
    ]
    np.testing.assert_allclose(steps[0], steps[1], rtol=1e-9)
    assert not np.allclose(steps[0], start)


def test_two_clients_by_hand():
    """Two clients, one sample, two classes: every number is worked out on paper.

    S_0 = (3/4, 1/4), S_1 = (1/4, 3/4), c = 1/2 everywhere, so both teachers are (1/2, 1/2).
    Entry (n, m) of the gradient is share_n Σ_k S_m(k) (log t(k) - log S_n(k) + 1):
    (0,0): 1/2 (3/4 log(2/3) + 1/4 log 2 + 1), (0,1): 1/2 (1/4 log(2/3) + 3/4 log 2 + 1).
    """
    predictions = np.array([[[0.75, 0.25]], [[0.25, 0.75]]])
    gradient = knowledge_gradient(np.full((2, 2), 0.5), predictions, np.array([0.5, 0.5]))
    same = 0.5 * (0.75 * np.log(2 / 3) + 0.25 * np.log(2) + 1)
    other = 0.5 * (0.25 * np.log(2 / 3) + 0.75 * np.log(2) + 1)
    np.testing.assert_allclose(gradient, [[same, other], [other, same]])


@given(st.integers(0, 10_000), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_projection_is_the_nearest_point_of_the_simplex(seed, size):
    rng = np.random.default_rng(seed)
    row = rng.normal(size=size) * 3
    mass = rng.uniform(0.1, 2)
    projected = project_onto_simplex(row[None], np.array([mass]))[0]
    assert (projected >= 0).all()
    assert projected.sum() == pytest.approx(mass)
    solved = minimize(
        lambda x: ((x - row) ** 2).sum(),
        np.full(size, mass / size),
        bounds=[(0, None)] * size,
        constraints={"type": "eq", "fun": lambda x: x.sum() - mass},
        tol=1e-12,
    )
    assert ((projected - row) ** 2).sum() <= solved.fun + 1e-6


def test_stepped_after_mixing_a_teacher_has_the_coefficients_of_the_round_before():
    """As in the paper's Fig. 1: uniform teachers first, and then those of the c stepped before."""
    rng = np.random.default_rng(6)
    rounds = random_simplex(rng, 2, 4, 6, 3)
    late, early = (
        strategy_with_clients(step_coefficients=when) for when in ("after-mixing", "before-mixing")
    )
    for strategy in (late, early):
        strategy.state = strategy.aggregate(1, {n: predicting(rounds[0][n]) for n in range(4)})
    stepped = late.state.coefficients.whole()
    np.testing.assert_array_equal(stepped, early.state.coefficients.whole())
    assert not np.allclose(stepped, 1 / 4)
    for n in range(4):
        teachers = [strategy.train_payload(2, n)["teacher"] for strategy in (late, early)]
        np.testing.assert_allclose(teachers[0], rounds[0].mean(axis=0), rtol=1e-6)
        np.testing.assert_allclose(teachers[1], np.tensordot(stepped[n], rounds[0], 1), rtol=1e-6)
    late.state = late.aggregate(2, {n: predicting(rounds[1][n]) for n in range(4)})
    teacher = late.train_payload(3, 1)["teacher"]
    np.testing.assert_allclose(teacher, np.tensordot(stepped[1], rounds[1], 1), rtol=1e-6)


@pytest.mark.parametrize("kind", [KTpFL, SimPFL, TopKPFL])
def test_only_repliers_move_and_everybody_gets_a_teacher_from_them(kind):
    rng = np.random.default_rng(5)
    strategy = strategy_with_clients(kind, num_clients=5)
    before = random_simplex(rng, 5, 5)
    everybody = range(5)
    met = strategy.state.coefficients.with_members(everybody)
    coefficients = met.changed(everybody, everybody, before)
    strategy.state = replace(strategy.state, coefficients=coefficients)
    predictions = random_simplex(rng, 3, 6, 3)
    repliers = [0, 2, 3]
    strategy.state = strategy.aggregate(
        1, dict(zip(repliers, map(predicting, predictions), strict=True))
    )
    after = strategy.state.coefficients.whole()
    moved = np.zeros((5, 5), dtype=bool)
    moved[np.ix_(repliers, repliers)] = True
    np.testing.assert_array_equal(after[~moved], before[~moved])
    np.testing.assert_allclose(after.sum(axis=1), 1)
    assert not np.allclose(after[moved], before[moved])
    # Client 1 did not reply; its teacher is its renormalized row over the repliers.
    teacher = strategy.train_payload(2, 1)["teacher"]
    weights = before[1, repliers] / before[1, repliers].sum()
    np.testing.assert_allclose(teacher, np.tensordot(weights, predictions, 1), rtol=1e-6)


def test_cosine_similarities_by_pairs():
    rng = np.random.default_rng(6)
    predictions = random_simplex(rng, 3, 5, 4)
    similarities = cosine_similarities(predictions)
    for n in range(3):
        for m in range(3):
            a, b = predictions[n].ravel(), predictions[m].ravel()
            expected = a @ b / np.sqrt((a @ a) * (b @ b))
            assert similarities[n, m] == pytest.approx(expected)


def test_sim_pfl_scales_each_row_of_cosines_before_it_weighs():
    similarities = np.array([[1.0, 0.98, 0.96], [0.98, 1.0, 0.99], [0.96, 0.99, 1.0]])
    expected = [[1, 0.5, 0], [0, 1, 0.5], [0, 0.75, 1]]
    np.testing.assert_allclose(min_max_scaled_rows(similarities), expected, atol=1e-9)
    np.testing.assert_array_equal(min_max_scaled_rows(np.full((2, 2), 0.7)), np.ones((2, 2)))


def test_top_k_takes_the_most_similar_others():
    similarities = np.array([[1, 0.9, 0.2, 0.8], [0.9, 1, 0.1, 0.3], [0.2, 0.1, 1, 0.5],
                             [0.8, 0.3, 0.5, 1]])  # fmt: skip
    weights = top_k_weights(similarities, 2)
    expected = [[0, 0.5, 0, 0.5], [0.5, 0, 0, 0.5], [0.5, 0, 0, 0.5], [0.5, 0, 0.5, 0]]
    np.testing.assert_array_equal(weights, expected)
    assert top_k_weights(similarities, 9).sum() == pytest.approx(4)
    assert top_k_weights(np.ones((1, 1)), 5) == 1
    np.testing.assert_array_equal(top_k_weights(similarities, 0), np.eye(4))


def test_fedmd_sends_one_mean_to_all_clients():
    rng = np.random.default_rng(7)
    predictions = random_simplex(rng, 4, 6, 3)
    strategy = strategy_with_clients(FedMD)
    strategy.state = strategy.aggregate(1, {n: predicting(predictions[n]) for n in (0, 1, 3)})
    teacher = strategy.train_payload(2, 2)["teacher"]
    np.testing.assert_allclose(teacher, predictions[[0, 1, 3]].mean(axis=0), rtol=1e-6)
    # One object for all, so that traffic counts it once as a broadcast.
    assert strategy.train_payload(2, 0)["teacher"] is teacher
    assert strategy.results().matrices == {}


@pytest.mark.parametrize("kind", [KTpFL, SimPFL])
def test_a_new_client_is_taught_by_those_who_have_joined(kind):
    rng = np.random.default_rng(9)
    predictions, own = random_simplex(rng, 3, 6, 3), random_simplex(rng, 6, 3)
    strategy = strategy_with_clients(kind)
    strategy.state = strategy.aggregate(1, {n: predicting(predictions[n]) for n in range(3)})
    teachers = [strategy.teacher_of(n) for n in (0, 2)]
    del strategy.members.clients[1]
    strategy.state = strategy.with_new_clients(1, {3: predicting(own)})
    row = normalized_rows(strategy.state.coefficients.at([3], [0, 2, 3]))[0]
    expected = np.einsum("m,mpk->pk", row, [*teachers, own])
    np.testing.assert_allclose(strategy.teacher_of(3), expected, rtol=1e-5)


def test_the_step_of_the_distillation_follows_the_schedule(small, monkeypatch):
    rates = []

    def noted(client, parameters, rate):
        rates.append(rate)
        return torch.optim.SGD(parameters, rate)

    client = client_of(
        {**small, "strategy": "kt-pfl", "models": "mlp"},
        **{"num-server-rounds": 4, "learning-rate-schedule": "step"},
        **{"kt-pfl.distillation-learning-rate": 0.5},
    )
    monkeypatch.setattr(type(client), "optimizer", noted)
    teacher = torch.full((len(client.session.public_images(1)), 10), 0.1)
    # After the last round, the step is that of the last round.
    for server_round in (2, 3, 4, 5):
        client.distill(teacher, server_round)
    assert rates == pytest.approx([0.5, 0.05, 0.005, 0.005])
