"""PrivateKT (Qi et al. 2023): randomized response, its estimates and accounting, and the buffer."""

import math

import numpy as np
import pytest
import torch
from by_hand import witnessed
from helpers import client_of

from fedkd_flwr.clients.policy import PolicyError
from fedkd_flwr.data.public import public_subset
from fedkd_flwr.runs import read_checkpoint
from strategies.core.metrics import metrics_of
from strategies.privatekt import drawn_by_entropy, keep_probability, label_frequencies, randomized


@pytest.fixture
def small(small):
    return {**small, "strategy": "privatekt", "soft-predictions.noise-seed": 0}


def labels_in(witness):
    return {(t, n): a["labels"] for (t, kind, n), a in witness.up.items() if "labels" in a}


def test_a_client_refuses_to_answer_more_samples_than_its_epsilon_is_for(small):
    """Each label costs epsilon / A, and the ledger counts epsilon."""
    client = client_of(small, **{"privatekt.knowledge-samples": 3})
    rows = torch.full((4, client.data.classes), 1 / client.data.classes)
    assert len(client.release(rows[:3], {}, 1).arrays["labels"]) == 3
    with pytest.raises(PolicyError, match="more labels than"):
        client.release(rows, {}, 1)


def chances(epsilon, num_classes):
    beta = keep_probability(epsilon, num_classes)
    return beta * np.eye(num_classes) + (1 - beta) / num_classes


@pytest.mark.parametrize("num_classes", [2, 10, 200])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 2.5, 20.0])
def test_the_ratio_of_chances_is_exactly_e_to_the_epsilon(epsilon, num_classes):
    matrix = chances(epsilon, num_classes)
    np.testing.assert_allclose(matrix.sum(axis=1), 1)
    assert math.log((matrix.max(axis=0) / matrix.min(axis=0)).max()) == pytest.approx(epsilon)
    assert keep_probability(epsilon, num_classes) == pytest.approx(
        math.expm1(epsilon) / (math.expm1(epsilon) + num_classes)
    )


def test_replies_have_these_chances():
    """Over a grid of all draws, the shares are the probabilities up to the grid's width."""
    size, epsilon = 400, 1.5
    grid = (np.arange(size) + 0.5) / size
    draws = np.stack([np.repeat(grid, size), np.tile(grid, size)])
    for label in (0, 3):
        replies = randomized(np.full(size**2, label), 4, epsilon, lambda shape: draws)
        shares = np.bincount(replies, minlength=4) / size**2
        np.testing.assert_allclose(shares, chances(epsilon, 4)[label], atol=1 / size)


def test_estimates_of_frequencies_are_unbiased():
    """The mean over all replies, each with its chance, is the true label."""
    epsilon, num_classes = 0.7, 5
    matrix = chances(epsilon, num_classes)
    single = [label_frequencies(np.array([[reply]]), num_classes, epsilon)[0] for reply in range(5)]
    np.testing.assert_allclose(matrix @ np.array(single), np.eye(num_classes), atol=1e-12)
    generator = np.random.default_rng(0)
    truth = np.repeat([0, 1, 3], [6000, 3000, 1000])
    replies = randomized(truth, num_classes, epsilon, generator.random)
    estimate = label_frequencies(replies[:, None], num_classes, epsilon)[0]
    assert estimate.sum() == pytest.approx(1)
    np.testing.assert_allclose(estimate, [0.6, 0.3, 0, 0.1, 0], atol=0.06)


def test_samples_are_drawn_by_the_exponential_of_their_entropy():
    class Generator:
        def choice(self, size, number, replace, p):
            assert (size, number, replace) == (3, 2, False)
            self.p = p
            return np.array([2, 0])

    logits = np.log(np.array([[0.5, 0.5], [0.9, 0.1], [1 - 1e-9, 1e-9]]))
    entropy = np.array([math.log(2), -(0.9 * math.log(0.9) + 0.1 * math.log(0.1)), 0])
    for sign in (1, -1):
        generator = Generator()
        assert drawn_by_entropy(logits, 2, sign, generator).tolist() == [0, 2]
        weights = np.exp(sign * entropy)
        np.testing.assert_allclose(generator.p, weights / weights.sum(), atol=1e-6)


def test_labels_are_those_of_the_models_where_epsilon_is_large(small, tmp_path):
    """In round 1 clients have trained as FedMD's; the buffer has the most frequent labels."""
    changes = {"privatekt.epsilon": 700, "privatekt.knowledge-samples": 5}
    ours, _ = witnessed(small, tmp_path / "ours", **changes, **{"num-server-rounds": 1})
    fedmd, _ = witnessed(small, tmp_path / "fedmd", strategy="fedmd")
    state = read_checkpoint(tmp_path / "ours").state
    mask = np.unpackbits(ours.down[1, "train", 0]["asked"], count=40).astype(bool)
    assert mask.sum() == 5
    asked = {n: fedmd.up[1, "train", n]["predictions"][mask] for n in range(4)}
    sent = labels_in(ours)
    for n, predictions in asked.items():
        np.testing.assert_array_equal(sent[1, n], predictions.argmax(axis=1))
    counts = [np.bincount(votes, minlength=10) for votes in np.stack(list(sent.values())).T]
    np.testing.assert_array_equal(state["labels"], np.argmax(counts, axis=1))
    pool = len(client_of(small).data.public_images)
    np.testing.assert_array_equal(state["samples"], public_subset(pool, 40, 0, 1)[mask])
    assert ours.metrics[1, "train", 0].keys() <= {"gradient-steps", *COUNTS}


COUNTS = {metric.name for metric in metrics_of(["own"])}


def test_the_buffer_forgets_and_epsilon_adds_up(small, tmp_path):
    small |= {"num-server-rounds": 3, "privatekt.buffer-rounds": 2, "privatekt.epsilon": 4}
    witness, whole = witnessed(small, tmp_path / "whole")
    assert list(whole.rounds["epsilon"]) == [4, 8, 12]
    state = read_checkpoint(tmp_path / "whole").state
    pool = len(client_of(small).data.public_images)
    asked = [witness.down[t, "train", 0]["asked"] for t in (2, 3)]
    held = [
        public_subset(pool, 40, 0, t)[np.unpackbits(bits, count=40).astype(bool)]
        for t, bits in zip((2, 3), asked, strict=True)
    ]
    np.testing.assert_array_equal(state["samples"], np.concatenate(held))
    assert {a.dtype.name for a in labels_in(witness).values()} == {"uint16"}
    assert "teacher" not in witness.down[1, "train", 0]
    teachers = [witness.down[t, "train", n]["teacher"] for t in (2, 3) for n in (0, 1)]
    np.testing.assert_array_equal(teachers[0], teachers[1])
    np.testing.assert_allclose(np.sum(teachers, axis=2), 1, atol=1e-5)
    assert not np.array_equal(teachers[0], teachers[2])


def test_noise_is_secret_unless_it_has_a_seed(small, tmp_path):
    small |= {"num-server-rounds": 1, "privatekt.knowledge-samples": 20}
    key = "soft-predictions.noise-seed"
    sent = {
        (seed, number): labels_in(witnessed({**small, key: seed}, tmp_path / f"{seed}{number}")[0])
        for seed in (0, -1)
        for number in (1, 2)
    }
    same = {
        seed: all(np.array_equal(sent[seed, 1][key], sent[seed, 2][key]) for key in sent[seed, 1])
        for seed in (0, -1)
    }
    assert same == {0: True, -1: False}
