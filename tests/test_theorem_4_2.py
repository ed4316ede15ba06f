"""PerFed-CKT's reason for clusters: the linear regression of its Fig. 1 and Theorem 4.2.

Client k has the true model w_k = theta + zeta_k with zeta_k ~ N(0, v_k²), and sees it as
w^_k = w_k + N(0, sigma²/beta). It trains towards sum_i alpha_ki w^_i with weight lambda_k
(Eq. 14). Clients with a small v_i are close to theta, and so worth more to the others.
"""

import numpy as np
import pytest
import torch

from fedkd_flwr.clients.perfed_ckt import nearest_centroid
from strategies.perfed_ckt import cluster_predictions

SPREAD = np.array([0.5, 1.0, 2.0, 8.0])  # v_k
SIGMA, BETA, NU = 3.0, 4.0, 2.0
DRAWS = 200_000
CLIENTS = range(len(SPREAD))


def draw_models(generator):
    """Return true and observed models, (DRAWS, clients); theta is all but uniform on R."""
    theta = generator.uniform(-1000, 1000, size=(DRAWS, 1))
    true = theta + SPREAD * generator.standard_normal((DRAWS, len(SPREAD)))
    return true, true + SIGMA / np.sqrt(BETA) * generator.standard_normal(true.shape)


def optimal_weights():
    """Return alpha* of Eq. 16, the same for every k: it is inverse to sigma² + beta v_i²."""
    weights = 1 / (SIGMA**2 + BETA * SPREAD**2)
    return weights / weights.sum()


def optimal_regularization(k):
    """Return lambda_k* of Eq. 16."""
    return SIGMA**2 / (SPREAD[k] ** 2 * NU)


def personalized(observed, k, weights, regularization):
    """Return Eq. 14 where X'X = beta I and P'P = nu I."""
    pull = regularization * NU
    return (BETA * observed[:, k] + pull * observed @ weights) / (BETA + pull)


def errors(true, observed, k, weights, regularization):
    """Return the squared error in each draw."""
    return (personalized(observed, k, weights, regularization) - true[:, k]) ** 2


def significantly_above_zero(differences):
    return differences.mean() > 4 * differences.std() / np.sqrt(len(differences))


def test_the_closed_form_minimizes_the_objective():
    """Eq. 14 against least squares on the rows of Eq. 13."""
    generator = np.random.default_rng(0)
    weights, regularization = optimal_weights(), 0.7
    inputs = np.sqrt(BETA) * np.linalg.qr(generator.standard_normal((6, 2)))[0]
    public = np.sqrt(NU) * np.linalg.qr(generator.standard_normal((2, 2)))[0]
    true = generator.standard_normal((2, len(SPREAD)))
    answers = inputs @ true + SIGMA * generator.standard_normal((6, len(SPREAD)))
    observed = np.linalg.lstsq(inputs, answers, rcond=None)[0]
    rows = np.vstack([inputs, np.sqrt(regularization) * public])
    targets = np.concatenate([answers[:, 1], np.sqrt(regularization) * public @ observed @ weights])
    solved = np.linalg.lstsq(rows, targets, rcond=None)[0]
    np.testing.assert_allclose(solved, personalized(observed, 1, weights, regularization))


@pytest.mark.parametrize("k", CLIENTS)
def test_weights_of_the_theorem_beat_uniform_ones(k):
    true, observed = draw_models(np.random.default_rng(k))
    uniform = np.full(len(SPREAD), 1 / len(SPREAD))
    regularization = optimal_regularization(k)
    best = errors(true, observed, k, optimal_weights(), regularization)
    # With the same lambda, with any other, and against no transfer at all.
    for factor in (1.0, 0.0, 0.01, 0.1, 0.5, 2.0, 10.0):
        others = errors(true, observed, k, uniform, factor * regularization)
        assert significantly_above_zero(others - best)


@pytest.mark.parametrize("k", CLIENTS)
def test_no_other_weights_or_lambda_do_better(k):
    generator = np.random.default_rng(10 + k)
    true, observed = draw_models(generator)
    weights, regularization = optimal_weights(), optimal_regularization(k)
    best = errors(true, observed, k, weights, regularization).mean()
    for _ in range(50):
        other = 0.7 * weights + 0.3 * generator.dirichlet(np.ones(len(SPREAD)))
        factor = np.exp(generator.uniform(-1, 1))
        # The draws themselves may favour a neighbour by a hair.
        others = errors(true, observed, k, other, factor * regularization).mean()
        assert best < 1.002 * others


@pytest.mark.parametrize("k", CLIENTS)
def test_a_regression_on_the_draws_finds_the_weights_of_the_theorem(k):
    """The best linear guess of w_k from all w^_i, fitted, is what Eqs. 14 and 16 combine to."""
    true, observed = draw_models(np.random.default_rng(20 + k))
    fitted = np.linalg.lstsq(observed, true[:, k], rcond=None)[0]
    pull = optimal_regularization(k) * NU
    expected = pull * optimal_weights()
    expected[k] += BETA
    np.testing.assert_allclose(fitted, expected / (BETA + pull), atol=0.01)


@pytest.mark.parametrize("k", CLIENTS)
def test_the_printed_constant_lacks_a_plus(k):
    """Weights that sum to one, as Eq. 1 asks, need sigma² + A + beta v² below the line.

    Eq. 16 prints sigma² + A beta v², whose terms are not even of one unit.
    """
    others = np.arange(len(SPREAD)) != k
    inverse = 1 / (SIGMA**2 + BETA * SPREAD**2)
    a, own = 1 / inverse[others].sum(), SIGMA**2 + BETA * SPREAD[k] ** 2
    np.testing.assert_allclose(inverse * a * own / (own + a), optimal_weights())
    printed = inverse * a * own / (SIGMA**2 + a * BETA * SPREAD[k] ** 2)
    assert abs(printed.sum() - 1) > 0.05


def test_clusters_bring_every_client_of_figure_1_closer_to_its_true_model():
    """Appendix E: spreads 2, 5 and 200, inputs in [-10, 10]², lambda 50; noise is ours.

    The third client is unlike the others. Clusters are those of the method itself.
    """
    generator = np.random.default_rng(0)
    spreads, regularization, samples, public_size = (2, 5, 200), 50.0, 10, 10
    total = {"fedavg": np.zeros(3), "average": np.zeros(3), "clusters": np.zeros(3)}
    for _ in range(200):
        theta = generator.uniform(-10, 10, 2)
        true = np.stack([theta + v * generator.standard_normal(2) for v in spreads])
        inputs = generator.uniform(-10, 10, (3, samples, 2))
        answers = np.einsum("ksd,kd->ks", inputs, true)
        answers += 30 * generator.standard_normal(answers.shape)
        fits = [np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(inputs, answers, strict=True)]
        public = generator.uniform(-10, 10, (public_size, 2))
        predictions = np.stack([public @ fit for fit in fits])[:, :, None]
        centroids, _ = cluster_predictions(predictions, 2, seed=0)
        for k in range(3):
            own = torch.from_numpy(predictions[k]).float()
            nearest = centroids[nearest_centroid(torch.from_numpy(centroids), own)]
            teachers = {"average": predictions.mean(axis=0), "clusters": nearest}
            total["fedavg"][k] += np.sum((np.mean(fits, axis=0) - true[k]) ** 2)
            for name, teacher in teachers.items():
                scale = np.sqrt(regularization / public_size)
                rows = np.vstack([inputs[k] / np.sqrt(samples), scale * public])
                targets = np.concatenate([answers[k] / np.sqrt(samples), scale * teacher[:, 0]])
                model = np.linalg.lstsq(rows, targets, rcond=None)[0]
                total[name][k] += np.sum((model - true[k]) ** 2)
    assert (total["clusters"] < 0.1 * total["average"]).all()
    assert (total["clusters"] < 0.1 * total["fedavg"]).all()
