"""PerFed-CKT's theory: Theorem 4.2, Fig. 1 and appendix D, checked with the project's own code.

Client k has the true model w_k = theta + zeta_k with zeta_k ~ N(0, v_k²), and estimates it as
w^_k = w_k + N(0, sigma²/beta). It trains towards sum_i alpha_ki w^_i with weight lambda_k
(Eq. 14). Clients with a small v_i are close to theta, and so more useful to the others.

A client's model gives the first of two classes the probability x'w. Its soft predictions are then
linear in w, and both classes have the same distance from a teacher. The regularization of Eq. 1 is
2 lambda times the squared distance in x'w.
"""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from fedkd_flwr.clients.perfed_ckt import nearest_centroid
from fedkd_flwr.training.loop import predict_logits, train_on
from fedkd_flwr.training.losses import CoDistillation
from strategies.core.mixing import weighted_mean
from strategies.perfed_ckt import centroids_of, k_means

SPREAD = np.array([0.01, 0.015, 0.03, 0.045])  # v_k; all weights stay probabilities
SIGMA = 0.025
DRAWS = 10_000
CLIENTS = range(len(SPREAD))


def products(inputs, weights):
    """Return x'w; a row of the unit matrix is given as its index."""
    return inputs @ weights if inputs.is_floating_point() else weights[inputs]


class LinearModel(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(weights, dtype=torch.float64))

    def forward(self, inputs):
        first = products(inputs, self.weights)
        return torch.stack([first, 1 - first], dim=1).log()


def squared_error(model, inputs, answers):
    return (products(inputs, model.weights) - answers).square().mean()


def trained(start, private, public, teacher, regularization, steps):
    """Return the weights after training on full batches of Eq. 1 with a teacher (P, 2)."""
    model = LinearModel(start)
    batch = tuple(torch.as_tensor(part) for part in (*private, public, teacher))
    # With rows of the unit matrix, this is 0.8 of the step that reaches the minimum.
    optimizer = torch.optim.SGD(model.parameters(), 0.4 * len(start) / (1 + 2 * regularization))
    train_on(model, CoDistillation(regularization, squared_error), optimizer, [batch] * steps)
    return model.weights.detach().numpy()


@pytest.mark.parametrize("regularization", [0.0, 0.5, 3.0])
def test_training_on_both_terms_converges_to_equation_14(regularization):
    """(X'X/n + 2 lambda P'P/p)^-1 (X'y/n + 2 lambda P'P w/p), w being the teacher's weights."""
    generator = np.random.default_rng(0)
    inputs, public = generator.dirichlet(np.ones(2), 12), generator.dirichlet(np.ones(2), 7)
    answers = inputs @ [0.3, 0.6] + 0.05 * generator.standard_normal(12)
    weights = np.array([0.7, 0.4])
    teacher = np.stack([public @ weights, 1 - public @ weights], axis=1)
    private = inputs, answers
    found = trained([0.5, 0.5], private, public, teacher, regularization, steps=500)
    own, shared = inputs.T @ inputs / 12, 2 * regularization * public.T @ public / 7
    expected = np.linalg.solve(own + shared, inputs.T @ answers / 12 + shared @ weights)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def optimal_weights():
    """Return alpha* of Eq. 16, the same for every k: proportional to 1 / (sigma² + beta v_i²).

    The constant in Eq. 16 lacks a plus. For weights that sum to one, as Eq. 1 requires, the
    denominator is sigma² + A + beta v_k² instead of the printed sigma² + A beta v_k².
    """
    weights = 1 / (SIGMA**2 + SPREAD**2)
    return weights / weights.sum()


@pytest.mark.parametrize("k", CLIENTS)
def test_the_theorems_teacher_and_weight_are_closest_to_the_true_model(k):
    """One draw per dimension: X = P = 1, so beta = 1 and nu lambda_k = 2 lambda."""
    generator = np.random.default_rng(k)
    theta = generator.uniform(0.4, 0.6, (DRAWS, 1))
    true = theta + SPREAD * generator.standard_normal((DRAWS, len(SPREAD)))
    observed = true + SIGMA * generator.standard_normal(true.shape)
    unit = torch.arange(DRAWS)
    predictions = np.stack(
        [predict_logits(LinearModel(column), unit).softmax(dim=1).numpy() for column in observed.T]
    )

    def errors(weights, regularization):
        start, teacher = observed[:, k], weighted_mean(weights[None], predictions)[0]
        found = trained(start, (unit, start), unit, teacher, regularization, steps=12)
        return (found - true[:, k]) ** 2

    regularization = SIGMA**2 / (2 * SPREAD[k] ** 2)
    best = errors(optimal_weights(), regularization)
    uniform = np.full(len(SPREAD), 1 / len(SPREAD))
    best_one = np.eye(len(SPREAD))[0]
    for weights, factor in [
        (optimal_weights(), 0.0), (optimal_weights(), 0.2), (optimal_weights(), 5.0),
        (uniform, 0.2), (uniform, 1.0), (uniform, 5.0), (best_one, 1.0),
    ]:  # fmt: skip
        lost = errors(weights, factor * regularization) - best
        assert lost.mean() > 4 * lost.std() / np.sqrt(DRAWS)


@pytest.mark.parametrize("seed", range(5))
def test_centroids_are_those_of_the_best_of_all_groupings(seed):
    """Seven clients can be split into two groups in 63 ways."""
    predictions = np.random.default_rng(seed).dirichlet(np.ones(2), (7, 4))

    def scatter(centroids, labels):
        return np.sum((predictions - centroids[labels]) ** 2)

    def means(labels):
        return np.stack([predictions[labels == group].mean(axis=0) for group in (0, 1)])

    groupings = [np.array([0, *others]) for others in itertools.product((0, 1), repeat=6)][1:]
    best = min(groupings, key=lambda labels: scatter(means(labels), labels))
    centroids, labels = centroids_of(predictions, k_means(predictions, 2, seed=0))
    assert len(groupings) == 63
    np.testing.assert_array_equal(labels == labels[0], best == 0)
    np.testing.assert_allclose(centroids[labels], means(best)[best], atol=1e-6)


def test_clusters_bring_every_client_of_figure_1_closer_to_its_true_model():
    """Appendix E: spreads 2, 5 and 200, inputs in [-10, 10]², lambda 50; noise is ours.

    The third client is an outlier. Clusters come from the method's own code.
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
        centroids, _ = centroids_of(predictions, k_means(predictions, 2, seed=0))
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


# ---- Appendix D ----------------------------------------------------------------------


def true_loss(hypothesis, likelihood, positive):
    """Return E|h(x) - y| where P(x) and P(y = 1 | x) are known, over the last axis."""
    return (likelihood * (positive * (1 - hypothesis) + (1 - positive) * hypothesis)).sum(axis=-1)


def fitted(generator, likelihood, positive, samples):
    """Return the minimizer of the loss on some samples, 1/2 where there are none, and its loss."""
    inputs = generator.choice(len(likelihood), samples, p=likelihood)
    answers = generator.random(samples) < positive[inputs]
    seen = np.bincount(inputs, minlength=len(likelihood))
    right = np.bincount(inputs, answers, minlength=len(likelihood))
    hypothesis = np.where(2 * right > seen, 1.0, np.where(2 * right < seen, 0.0, 0.5))
    return hypothesis, np.abs(hypothesis[inputs] - answers).mean()


def of_sample(samples, delta=0.05):
    """Return the term of Lemma D.2."""
    return np.sqrt(np.log(2 / delta) / (2 * samples))


def test_appendix_d_bounds_a_mixture_by_the_distances_between_clients():
    """Eq. 56, with m_i where it prints m_k; d is the L1 distance of P(x), four clients, six x."""
    generator = np.random.default_rng(0)
    sizes, gaps = np.array([100, 200, 400, 800]), []
    for _ in range(300):
        likelihoods = generator.dirichlet(np.ones(6), 4)
        positives = np.clip(generator.random(6) + 0.1 * generator.normal(size=(4, 6)), 0, 1)
        fits = [
            fitted(generator, *client) for client in zip(likelihoods, positives, sizes, strict=True)
        ]
        hypotheses, training_losses = (np.array(part) for part in zip(*fits, strict=True))
        weights = generator.dirichlet(np.ones(4))
        mixture = weighted_mean(weights[None], hypotheses[:, None])[0, 0]
        distances = np.abs(likelihoods - likelihoods[0]).sum(axis=1)
        ones = likelihoods * positives
        both = np.minimum(ones + ones[0], likelihoods - ones + likelihoods[0] - ones[0])
        bound = training_losses + of_sample(sizes) + distances / 2 + both.sum(axis=1)
        gaps.append(weights @ bound - true_loss(mixture, likelihoods[0], positives[0]))
    assert min(gaps) > 0
    assert np.median(gaps) < 1


def test_lemma_d_2_does_not_hold_for_a_client_that_memorizes():
    """Its proof takes Hoeffding's inequality for a hypothesis that depends on the samples."""
    likelihood, positive = np.full(20_000, 1 / 20_000), np.full(20_000, 0.5)
    hypothesis, training_loss = fitted(np.random.default_rng(0), likelihood, positive, 100)
    assert training_loss + of_sample(100) < 0.2
    assert true_loss(hypothesis, likelihood, positive) == pytest.approx(0.5)
