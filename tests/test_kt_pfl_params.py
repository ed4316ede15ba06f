"""KT-pFL on parameters (Zhang et al. 2021, appendix C): c's step, the mixture, FedAvg at 1/N."""

import numpy as np
import pytest
import torch
from by_hand import CHANGES, sizes_of, trained, training_data, witnessed
from helpers import Witness, run_with

from strategies.core.probabilities import normalized_rows, project_onto_simplex
from strategies.kt_pfl_params import distance_gradient
from strategies.parameters import gram_matrix

QUICK = {"kt-pfl-params.coefficient-learning-rate": 0.05}


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "kt-pfl-params"}


def step_by_autograd(coefficients, models, shares, rate=0.05, rho=0.6):
    c = torch.tensor(coefficients, requires_grad=True)
    w = torch.from_numpy(np.array(models, dtype=np.float64))
    distances = (c @ w - w).square().sum(dim=1)
    regularization = rho * (c - 1 / len(coefficients)).square().sum()
    (torch.from_numpy(shares) @ distances + regularization).backward()
    return project_onto_simplex(coefficients - rate * c.grad.numpy(), np.ones(len(coefficients)))


def test_the_gradient_in_closed_form_is_autograds_up_to_a_constant_a_row():
    generator = np.random.default_rng(0)
    models = generator.normal(size=(4, 2)).astype(np.float32) + np.float32(3)
    coefficients = generator.dirichlet(np.ones(4), size=4)
    shares = generator.dirichlet(np.ones(4))
    c = torch.tensor(coefficients, requires_grad=True)
    w = torch.from_numpy(models).double()
    (torch.from_numpy(shares) @ (c @ w - w).square().sum(dim=1)).backward()
    products = gram_matrix([{"weights": model, "buffers": np.ones(1)} for model in models])
    found = distance_gradient(coefficients, products, shares)
    difference = found - c.grad.numpy()
    np.testing.assert_allclose(difference, difference[:, :1].repeat(4, axis=1), atol=1e-5)
    uncentered = distance_gradient(coefficients, (w @ w.T).numpy(), shares)
    np.testing.assert_allclose(uncentered, c.grad.numpy(), atol=1e-9)


def test_clients_start_part_of_the_way_to_the_mixture_of_models(small, tmp_path):
    """Over three rounds: local steps, c by autograd, and tau = 0.7 from the second round on."""
    small |= {**QUICK, "kt-pfl-params.transfer-step": 0.7, "num-server-rounds": 3}
    run, finished = witnessed(small, tmp_path / "run")
    shares = sizes_of(small) / sizes_of(small).sum()
    coefficients = np.full((2, 2), 0.5)
    sent = [run.down[1, "train", n]["weights"] for n in (0, 1)]
    starts = sent
    for t in (1, 2, 3):
        ends = []
        for n in (0, 1):
            np.testing.assert_allclose(run.down[t, "train", n]["weights"], sent[n], atol=3e-6)
            ends.append(trained(starts[n], *training_data(small, n), steps=3))
            np.testing.assert_allclose(run.up[t, "train", n]["weights"], ends[n], atol=3e-6)
        before, coefficients = coefficients, step_by_autograd(coefficients, ends, shares)
        np.testing.assert_allclose(
            finished.matrices["coefficients"][t - 1], coefficients, atol=1e-5
        )
        assert np.abs(coefficients - before).max() > 1e-3
        sent = (coefficients @ ends).astype(np.float32)
        starts = [end + np.float32(0.7) * (mix - end) for end, mix in zip(ends, sent, strict=True)]


def test_only_the_repliers_coefficients_move_and_absent_models_are_not_mixed_in(small, tmp_path):
    small |= {**QUICK, "num-clients": 4, "fraction-train": 0.5, "num-server-rounds": 4}
    run = Witness()
    finished, _ = run_with(run, small, tmp_path / "run")
    before = np.full((4, 4), 0.25)
    for t in (1, 2, 3, 4):
        repliers, after = run.trained(t), finished.matrices["coefficients"][t - 1]
        moved = np.abs(after - before) > 0
        assert moved.any()
        moved[np.ix_(repliers, repliers)] = False
        assert not moved.any()
        np.testing.assert_allclose(after.sum(axis=1), 1)
        models = [run.up[t, "train", n]["weights"] for n in repliers]
        for n in run.trained(t + 1):
            row = normalized_rows(after[[n]][:, repliers])[0]
            np.testing.assert_allclose(
                run.down[t + 1, "train", n]["weights"], row @ models, atol=1e-6
            )
        before = after
