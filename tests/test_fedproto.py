"""FedProto (Tan et al. 2022): prototypes, the term towards them, nearest prototypes."""

import numpy as np
import pytest
import torch
from helpers import Witness, client_of, reply_with, run_with
from torch import nn

from fedkd_flwr.clients.fedproto import NearestPrototype, TowardsPrototypes, nearest_prototype_head
from fedkd_flwr.models.features import feature_width, features
from strategies.core.plan import RunPlan
from strategies.fedproto import FedProto, FedProtoSettings


@pytest.fixture
def small(small):
    return {**small, "strategy": "fedproto", "fedproto.feature-width": 12}


def replies_of(*clients):
    return {
        n: reply_with({"class-means": np.float32(means), "class-counts": np.float32(counts)})
        for n, (means, counts) in enumerate(clients)
    }


def test_two_clients_prototypes_are_weighed_by_samples_and_kept_where_nobody_holds_a_class():
    plan = RunPlan(num_clients=2, num_classes=3)
    strategy = FedProto(plan, FedProtoSettings(feature_width=2))
    strategy.state = strategy.begin({})
    assert strategy.train_payload(1, 0) == {}
    first = ([[1, 2], [9, 9], [5, 5]], [3, 0, 2])
    second = ([[5, 6], [9, 9], [9, 9]], [1, 0, 0])
    strategy.state = strategy.aggregate(1, replies_of(first, second))
    sent = strategy.train_payload(2, 0)
    np.testing.assert_allclose(sent["prototypes"], [[2, 3], [0, 0], [5, 5]])
    np.testing.assert_array_equal(sent["prototype-flags"], [1, 0, 1])
    strategy.state = strategy.aggregate(
        2, replies_of(second, ([[0, 0], [7, 8], [0, 0]], [0, 4, 0]))
    )
    sent = strategy.evaluate_payload(2, 1)
    np.testing.assert_allclose(sent["prototypes"], [[5, 6], [7, 8], [5, 5]])
    np.testing.assert_array_equal(sent["prototype-flags"], [1, 1, 1])


def test_the_regularization_by_hand():
    """Features (a x, b x) at x = 1: the pull's gradient is 2 lambda / d (h - prototype)."""
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.3], [-0.2]]))
        model[1].weight.zero_()
    prototypes, flags = torch.tensor([[1.0, 2.0], [5.0, 5.0]]), torch.tensor([1.0, 0.0])
    loss = TowardsPrototypes((prototypes, flags), weight=0.25)
    images = torch.ones(2, 1)
    value = loss(model, images, torch.tensor([0, 1]))
    value.backward()
    assert value.item() == pytest.approx(np.log(2) + 0.25 * (0.7**2 + 2.2**2) / 2 / 2, abs=1e-5)
    # Half, since the other sample's class has no prototype.
    expected = 0.25 * 2 / 2 * np.array([0.3 - 1, -0.2 - 2]) / 2
    np.testing.assert_allclose(model[0].weight.grad.flatten(), expected, atol=1e-6)


def test_the_nearest_prototype_is_chosen_among_present_ones():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
    prototypes = torch.tensor([[0.0, 0.0], [1.0, 1.0], [3.0, 3.0]])
    nearest = NearestPrototype(model, prototypes, torch.tensor([1.0, 0.0, 1.0]))
    logits = nearest(torch.tensor([[1.1, 1.1], [2.5, 2.0], [1e6, 1e6]]))
    assert logits.argmax(dim=1).tolist()[:2] == [0, 2]
    assert logits[0, 0].item() == pytest.approx(-2 * 1.1**2, abs=1e-4)
    assert torch.isfinite(logits).all()
    # An image whose features are no numbers changes the prediction of no other.
    beside = nearest(torch.tensor([[1.1, 1.1], [2.5, 2.0], [torch.nan, 1.0]]))
    assert torch.equal(beside[:2], logits[:2])


def test_mixed_models_agree_on_a_width_and_send_their_mean_features(small, tmp_path):
    witness = Witness()
    _, grid = run_with(witness, small, tmp_path / "run")
    for n in range(4):
        client = client_of(small, n, grid.contexts[n])
        assert feature_width(client.model) == 12
        with torch.inference_mode():
            entered = features(client.model.eval(), client.data.train_images)
        labels, sent = client.data.train_labels, witness.up[2, "train", n]
        for k in labels.unique():
            mean = entered[labels == k].mean(dim=0)
            np.testing.assert_allclose(sent["class-means"][k], mean, atol=1e-4, rtol=1e-4)


def test_the_nearest_prototype_is_a_linear_layer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5))
    prototypes, flags = torch.randn(5, 3), torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    images, has = 9 * torch.randn(200, 4), flags > 0
    expected = NearestPrototype(model, prototypes, flags)(images)
    logits = nearest_prototype_head(prototypes, flags)(model[0](images))
    assert torch.equal(logits.argmax(dim=1), expected.argmax(dim=1))
    assert set(expected.argmax(dim=1).tolist()) == {0, 2, 3}
    assert torch.isfinite(logits).all()
    torch.testing.assert_close(
        logits[:, has].softmax(dim=1), expected[:, has].softmax(dim=1), atol=1e-4, rtol=1e-3
    )
