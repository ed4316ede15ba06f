"""pFedHN (Shamsian et al. 2021): the hypernetwork's step, against autograd and by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import TWO_CLIENTS, trained, training_data, witnessed
from helpers import Witness, breaking, replacing, run_with

from fedkd_flwr.config import read_config
from strategies.core.randomness import random_generator
from strategies.core.state import named_arrays
from strategies.pfedhn import (
    PFedHNSettings,
    cut_to_norm,
    generated_weights,
    layer_inputs,
    new_network,
    vector_jacobian_product,
)


@pytest.fixture
def small(small):
    return {**small, **TWO_CLIENTS, "strategy": "pfedhn", "pfedhn.hidden-size": 8}


def random_network(num_clients=3, length=7):
    """Return a hypernetwork whose parts are all different from zero."""
    generator = np.random.default_rng(0)
    settings = PFedHNSettings(embedding_size=2, hidden_size=5, hidden_layers=2)
    network = new_network(settings, num_clients, np.ones(length, dtype=np.float32), generator)
    return replace(network, head=generator.normal(size=(length, 5)).astype(np.float32))


def forward(parts, client):
    layers = sum(name.startswith("weights/") for name in parts)
    features = parts["embeddings"][client]
    for layer in range(layers):
        features = parts[f"weights/{layer}"] @ features + parts[f"biases/{layer}"]
        if layer < layers - 1:
            features = torch.relu(features)
    return parts["head"] @ features + parts["head_bias"]


def as_leaves(network):
    return {
        name: torch.tensor(part, requires_grad=True) for name, part in named_arrays(network).items()
    }


def test_the_vector_jacobian_product_is_that_of_autograd():
    network, vectors = random_network(), np.random.default_rng(1).normal(size=(2, 7))
    vectors = vectors.astype(np.float32)
    parts = as_leaves(network)
    for client in (0, 2):
        weights = forward(parts, client).detach().numpy()
        np.testing.assert_allclose(generated_weights(network, client), weights, atol=1e-6)
    total = sum(
        forward(parts, n) @ torch.from_numpy(u) for n, u in zip((0, 2), vectors, strict=True)
    )
    total.backward()
    product = vector_jacobian_product(network, [0, 2], vectors)
    assert named_arrays(product).keys() == parts.keys()
    for name, part in named_arrays(product).items():
        assert np.abs(part).max() > 0
        np.testing.assert_allclose(part, parts[name].grad, atol=1e-5)
    assert not product.embeddings[1].any()


def test_gradient_clipping_uses_the_norm_over_all_parts():
    gradient = [np.array([3.0], np.float32), np.array([[0.0, 4.0]], np.float32)]
    cut_to_norm(gradient, 6.0)
    np.testing.assert_array_equal(gradient[0], [3])
    np.testing.assert_array_equal(gradient[1], [[0, 4]])
    cut_to_norm(gradient, 1.0)
    np.testing.assert_allclose(gradient[0], [0.6], rtol=1e-6)
    np.testing.assert_allclose(gradient[1], [[0, 0.8]], rtol=1e-6)


def test_the_first_step_mixes_what_clients_learned_by_their_features(small, tmp_path):
    """From a head of zeros: θ_i = θ + rate Σ_j (1 + h_i · h_j) (θ̃_j - θ)."""
    changes = {"num-server-rounds": 1, "pfedhn.learning-rate": 0.5}
    witness, _ = witnessed(small, tmp_path / "run", **changes)
    start = witness.down[1, "train", 0]["weights"]
    np.testing.assert_array_equal(start, witness.down[1, "train", 1]["weights"])
    learned = [trained(start, *training_data(small, n)) - start for n in (0, 1)]
    network = new_network(
        PFedHNSettings(hidden_size=8), 2, start, random_generator(0, "hypernetwork")
    )
    features = layer_inputs(network, [0, 1])[-1]
    for i in (0, 1):
        mixed = sum((1 + features[i] @ features[j]) * learned[j] for j in (0, 1))
        sent = witness.down[1, "evaluate", i]["weights"]
        np.testing.assert_allclose(sent, start + 0.5 * mixed, atol=1e-6)
    assert np.abs(features[0] @ (features[0] - features[1])) > 1e-3


def test_each_round_is_a_step_of_gradient_descent_with_momentum(small, tmp_path):
    """Two rounds of the run against torch's optimizer, clipping and autograd."""
    small |= {"pfedhn.learning-rate": 0.3, "pfedhn.gradient-norm": 0.05}
    witness, _ = witnessed(small, tmp_path / "run")
    start = witness.down[1, "train", 0]["weights"]
    settings = read_config(small).settings
    parts = as_leaves(new_network(settings, 2, start, random_generator(0, "hypernetwork")))
    descent = torch.optim.SGD(parts.values(), lr=0.3, momentum=0.9)
    for server_round in (1, 2):
        weights = [forward(parts, n) for n in (0, 1)]
        total = 0
        for n in (0, 1):
            sent = witness.down[server_round, "train", n]["weights"]
            np.testing.assert_allclose(sent, weights[n].detach().numpy(), atol=1e-5)
            change = sent - trained(sent, *training_data(small, n))
            total = total + weights[n] @ torch.from_numpy(change)
        descent.zero_grad()
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(parts.values(), 2 * 0.05)
        assert norm > 2 * 0.05
        descent.step()
        for n in (0, 1):
            sent = witness.down[server_round, "evaluate", n]["weights"]
            np.testing.assert_allclose(sent, forward(parts, n).detach().numpy(), atol=1e-5)
    assert np.abs(sent - start).max() > 1e-3


def test_a_client_that_sends_huge_weights_moves_the_hypernetwork_by_a_bounded_step(small, tmp_path):
    huge = replacing(weights=np.full(79510, 9e7, dtype=np.float32))
    witness = Witness(breaking(huge))
    run_with(witness, small, tmp_path / "run", **{"num-server-rounds": 1})
    moved = witness.down[1, "evaluate", 0]["weights"] - witness.down[1, "train", 0]["weights"]
    features = 8 * 4  # no feature is beyond 4 with eight units
    assert np.isfinite(moved).all()
    assert np.linalg.norm(moved) <= 0.01 * 2 * 50 * (1 + features)


def test_embeddings_are_as_long_as_the_paper_says_unless_set():
    weights, generator = np.zeros(3, dtype=np.float32), np.random.default_rng(0)
    assert new_network(PFedHNSettings(), 20, weights, generator).embeddings.shape == (20, 6)
    chosen = PFedHNSettings(embedding_size=4)
    assert new_network(chosen, 20, weights, generator).embeddings.shape == (20, 4)
