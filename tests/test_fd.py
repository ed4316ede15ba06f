"""FD (Jeong et al. 2018): the others' mean predictions, the term, and local where gamma is 0."""

import numpy as np
import pytest
import torch
from helpers import Witness, client_of, random_simplex, reply_with, run_with
from torch import nn

from fedkd_flwr.clients.fd import ClassDistillation
from strategies.core.plan import RunPlan
from strategies.core.probabilities import NotOnSimplexError
from strategies.core.replies import ClientInfo, InvalidReplyError
from strategies.fd import FD, FDSettings, means_of_others


@pytest.fixture
def small(small):
    return {**small, "strategy": "fd", "fd.gamma": 0.5, "cohort": "off"}


def test_the_means_of_others_client_by_client():
    generator = np.random.default_rng(0)
    holds = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    means = random_simplex(generator, 3, 3, 3) * holds[..., None]
    found = means_of_others(means, holds)
    for n in range(3):
        for k in range(3):
            others = [means[m, k] for m in range(3) if m != n and holds[m, k]]
            expected = np.mean(others, axis=0) if others else np.zeros(3)
            np.testing.assert_allclose(found[n, k], expected, atol=1e-12)


def test_a_step_on_two_parameters_by_hand():
    """Logits (a x, b x) at x = 1 and label 0: the gradient is s - e_0 + gamma (s - target)."""
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.3], [-0.2]]))
    targets = torch.tensor([[0.6, 0.4], [0.0, 0.0]])
    loss = ClassDistillation(weight=0.5)
    loss(model, torch.ones(1, 1), torch.tensor([0]), targets).backward()
    s = np.exp([0.3, -0.2]) / np.exp([0.3, -0.2]).sum()
    expected = s - [1, 0] + 0.5 * (s - [0.6, 0.4])
    np.testing.assert_allclose(model.weight.grad.flatten(), expected, atol=1e-6)
    model.weight.grad = None
    loss(model, torch.ones(1, 1), torch.tensor([1]), targets).backward()
    np.testing.assert_allclose(model.weight.grad.flatten(), s - [0, 1], atol=1e-6)


def test_clients_send_what_they_predict_for_their_classes_and_get_the_others(small, tmp_path):
    small |= {"num-clients": 2, "max-samples": 300}
    witness = Witness()
    _, grid = run_with(witness, small, tmp_path / "run")
    first = {n: witness.up[1, "train", n] for n in (0, 1)}
    assert witness.down[1, "train", 0] == {}
    for n in (0, 1):
        held = first[1 - n]["class-counts"] > 0
        targets = witness.down[2, "train", n]["targets"]
        np.testing.assert_allclose(targets[held], first[1 - n]["class-means"][held], atol=1e-6)
        assert not targets[~held].any()
        client = client_of(small, n, grid.contexts[n])
        with torch.inference_mode():
            predictions = client.model.eval()(client.data.train_images).softmax(dim=1)
        labels = client.data.train_labels
        for k in labels.unique():
            mean = predictions[labels == k].mean(dim=0)
            sent = witness.up[2, "train", n]["class-means"][k]
            np.testing.assert_allclose(sent, mean, atol=1e-5)
        counts = torch.bincount(labels, minlength=10)
        np.testing.assert_array_equal(witness.up[2, "train", n]["class-counts"], counts)


@pytest.mark.parametrize(
    ("means", "counts", "reason"),
    [
        ([[0.5, 0.5], [2.0, 0.0]], [1, 1], "a row that sums to 2, not 1"),
        ([[0.5, 0.5], [2.0, 0.0]], [9, 0], "sums to 9, of 3 samples"),
        ([[0.5, 0.5], [2.0, 0.0]], [-1, 0], "values that are not counts"),
        ([[0.5, 0.5], [2.0, 0.0]], [0.5, 0], "values that are not counts"),
    ],
)
def test_means_and_counts_that_make_no_sense_are_refused(means, counts, reason):
    strategy = FD(RunPlan(num_clients=1, num_classes=2), FDSettings())
    strategy.members.clients[0] = ClientInfo(0, 7, "mlp", num_examples=3)
    arrays = {"class-means": np.array(means), "class-counts": np.array(counts)}
    with pytest.raises((InvalidReplyError, NotOnSimplexError), match=reason):
        strategy.check_reply(reply_with(arrays))
    strategy.check_reply(reply_with({**arrays, "class-counts": np.array([3, 0])}))
