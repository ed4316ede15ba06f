"""FedFomo (Zhang et al. 2021): weights by validation loss, mixtures, and models that are sent."""

import numpy as np
import pytest
import torch
from by_hand import (
    CHANGES,
    loss_of,
    trained,
    training_data,
    witnessed,
)
from helpers import client_of

from fedkd_flwr.models.vectors import fill_from_vectors, model_vectors
from strategies.core.randomness import random_generator
from strategies.fedfomo import chosen_models, gains_of, weights_of


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "fedfomo", "num-clients": 3}


def validation_loss(weights, flat, n):
    data = client_of(flat, n).data
    images, labels = data.validation_images.flatten(1), data.validation_labels
    return float(loss_of(torch.from_numpy(np.array(weights)), images, labels))


def gains_by_hand(start, candidates, flat, n):
    loss = validation_loss(start, flat, n)
    distances = [np.linalg.norm(candidate - start) for candidate in candidates]
    gains = [
        (loss - validation_loss(candidate, flat, n)) / distance if distance else 0.0
        for candidate, distance in zip(candidates, distances, strict=True)
    ]
    return np.array(gains)


def test_clients_move_towards_models_with_lower_validation_loss(small, tmp_path):
    small |= {"num-server-rounds": 3, "partition": "two-groups"}
    run, finished = witnessed(small, tmp_path / "run")
    models = [run.down[1, "train", n]["weights"] for n in (0, 1, 2)]
    starts, affinities, mixtures, signs = list(models), np.zeros((3, 3)), 0, set()
    for t in (1, 2, 3):
        last = list(models)
        for n in (0, 1, 2):
            sent = {k: v for k, v in run.down[t, "train", n].items() if "/" in k}
            if t == 1:
                assert not sent
            else:
                others = [m for m in (0, 1, 2) if m != n]
                found = [
                    next(m for m in others if np.array_equal(last[m], sent[f"{p}/weights"]))
                    for p in (0, 1)
                ]
                assert sorted(found) == others
                candidates = [*(last[m] for m in found), last[n]]
                gains = gains_by_hand(starts[n], candidates, small, n)
                reported = run.up[t, "train", n]["gains-of-others"]
                np.testing.assert_allclose(reported, [*gains[:2], 0, 0, 0], atol=2e-3)
                affinities[n, found] += reported[:2]
                weights = np.maximum(gains, 0)
                signs |= set(np.sign(reported[:2]))
                mixtures += weights[:2].any()
                starts[n] = last[n]
                if weights.any():
                    pairs = zip(weights / weights.sum(), candidates, strict=True)
                    starts[n] = np.float32(sum(w * candidate for w, candidate in pairs))
            weights = trained(starts[n], *training_data(small, n), steps=3)
            returned = run.up[t, "train", n]["weights"]
            np.testing.assert_allclose(returned, weights, atol=1e-5)
            models[n] = returned
        np.testing.assert_allclose(finished.matrices["affinities"][t - 1], affinities, atol=1e-6)
    assert mixtures > 0 and signs == {-1.0, 1.0}


def test_gains_are_per_distance_and_negative_for_worse_models():
    gains = gains_of(1.0, np.array([0.4, 0.8, 1.5]), np.array([2.0, 1.0, 0.1]))
    np.testing.assert_allclose(gains, [0.3, 0.2, -5.0])
    np.testing.assert_allclose(weights_of(gains), [0.6, 0.4, 0.0])
    np.testing.assert_array_equal(weights_of(np.array([-1.0, 0.0])), [0.0, 0.0])
    odd = gains_of(1.0, np.array([np.nan, 0.5, 0.9]), np.array([1.0, 0.0, 1.0]))
    np.testing.assert_allclose(odd, [0.0, 0.0, 0.1])
    assert gains_of(1.0, np.empty(0), np.empty(0)).shape == (0,)


@pytest.mark.parametrize("own_loss", [np.inf, np.nan])
def test_usable_models_get_equal_weights_if_the_own_loss_is_not_finite(own_loss):
    losses = np.array([0.4, 9.0, np.nan, 0.5, 0.5])
    distances = np.array([2.0, 0.1, 1.0, np.inf, 0.0])
    weights = weights_of(gains_of(own_loss, losses, distances))
    np.testing.assert_array_equal(weights, [0.25, 0.25, 0.0, 0.25, 0.25])
    none = weights_of(gains_of(own_loss, losses[2:3], distances[2:3]))
    np.testing.assert_array_equal(none, [0.0])


def test_a_client_without_a_finite_loss_continues_from_the_received_models(small):
    client = client_of(small)
    others = [model_vectors(client_of(small, n).session.new_model())["weights"] for n in (1, 2)]
    fill_from_vectors(client.model, {"weights": others[0] * np.float32(1e30)})
    client.session.memory.save("model", client.model.state_dict())
    call = {"names": ["0/weights", "1/weights"], "server-round": 2, "phase": "train"}
    (returned, gains), _, _ = client.fit(others, call)
    np.testing.assert_array_equal(gains, [1, 1, 0, 0, 0])
    expected = trained((others[0] + others[1]) / 2, *training_data(small, 0), steps=3)
    np.testing.assert_allclose(returned, expected, atol=3e-6)


def test_the_server_sends_the_best_and_in_some_places_random_ones():
    affinities = np.array([0.0, 3.0, 1.0, 2.0, 0.5])
    generator = random_generator(0, "test")
    assert list(chosen_models(affinities, 3, 0.0, generator)) == [1, 3, 2]
    assert sorted(chosen_models(affinities, 9, 0.5, generator)) == [0, 1, 2, 3, 4]
    drawn = np.array([chosen_models(affinities, 2, 0.5, generator) for _ in range(400)])
    assert (drawn[:, 0] != drawn[:, 1]).all()
    counts = np.bincount(drawn.reshape(-1), minlength=5)
    assert counts.argmax() == 1 and (counts > 0).all()
    everywhere = [chosen_models(affinities, 1, 1.0, generator)[0] for _ in range(400)]
    assert np.bincount(everywhere).min() > 40


def test_at_most_m_models_are_sent_and_never_the_own_one(small, tmp_path):
    small |= {"num-clients": 4, "fedfomo.models-sent": 2, "num-server-rounds": 3}
    run, _ = witnessed(small, tmp_path / "run")
    for t in (2, 3):
        for n in range(4):
            sent = run.down[t, "train", n]
            assert set(sent) == {"0/weights", "1/weights"}
            own = run.up[t - 1, "train", n]["weights"]
            assert not any(np.array_equal(vector, own) for vector in sent.values())
