"""Selective-FD (Shao et al. 2024): the density ratio, both selectors by hand, and the limits."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import client_of, reply_with

from fedkd_flwr.clients.selective_fd import DensityRatio, gaussian_kernel
from fedkd_flwr.config import read_config
from strategies.core.masks import unpacked_mask
from strategies.core.plan import RunPlan
from strategies.selective_fd import SelectiveFD, SelectiveFDSettings, selective_mean


@pytest.fixture
def small(small):
    return {**small, "strategy": "selective-fd", "models": "mlp"}


def test_the_density_ratio_is_the_minimum_of_its_objective():
    """The gradient of KuLSIF's objective in the coefficients of all samples is zero."""
    generator = torch.Generator().manual_seed(0)
    known = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    auxiliary = 4 * torch.rand(9, 2, generator=generator, dtype=torch.float64) - 2
    ridge, width = 0.2, 0.8
    ratio = DensityRatio(known, auxiliary, width, ridge)
    every = torch.cat([auxiliary, known])
    start = torch.cat([ratio.weights, torch.full((7,), 1 / (7 * ridge), dtype=torch.float64)])
    start.requires_grad_()
    kernel = gaussian_kernel(every, every, width)
    values = kernel @ start
    objective = (
        values[:9].square().mean() / 2 - values[9:].mean() + ridge / 2 * start @ kernel @ start
    )
    (slope,) = torch.autograd.grad(objective, start)
    torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-10, rtol=0)
    torch.testing.assert_close(ratio(every), values.detach())


def test_the_mean_of_selected_predictions_by_hand():
    predictions = np.array(
        [[[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [1, 0]], [[0.5, 0.5], [0.4, 0.6], [0.1, 0.9], [0, 1]]]
    )
    selected = np.array([[1, 1, 1, 0], [0, 1, 1, 0]], dtype=bool)
    mean, kept = selective_mean(predictions, selected, threshold=0.5)
    np.testing.assert_allclose(mean, [[0.9, 0.1], [0.5, 0.5], [0.2, 0.8], [0.5, 0.5]], atol=1e-6)
    # L1 distances to the nearest label are 0.2, 1 and 0.4; nobody selected the last sample.
    assert kept.tolist() == [True, False, True, False]
    assert selective_mean(predictions, selected, threshold=2.0)[1].tolist() == [True] * 3 + [False]


def test_the_server_teaches_what_clients_selected():
    plan = RunPlan(num_clients=2, num_classes=2, public_size=3)
    strategy = SelectiveFD(plan, SelectiveFDSettings(server_threshold=1.0))
    strategy.state = strategy.begin({})
    assert strategy.train_payload(1, 0) == {}
    rows = {0: [[0.9, 0.1]] * 3, 1: [[0.2, 0.8]] * 3}
    masks = {0: [True, False, False], 1: [True, True, False]}
    replies = {
        n: reply_with(
            {
                "predictions": np.array(rows[n], np.float32),
                "selected": np.packbits(np.array(masks[n])),
            }
        )
        for n in (0, 1)
    }
    strategy.state = strategy.aggregate(1, replies)
    sent = strategy.train_payload(2, 0)
    np.testing.assert_allclose(sent["teacher"], [[0.55, 0.45], [0.2, 0.8], [0.5, 0.5]], atol=1e-6)
    assert unpacked_mask(sent["kept"], 3).tolist() == [True, True, False]
    # One array for all clients is encoded and counted once.
    assert strategy.train_payload(2, 1)["kept"] is sent["kept"]


def test_clients_of_two_classes_select_images_of_these(small):
    """The labels of public samples are not used by anybody but this test."""
    small |= {"partition": "two-classes", "max-samples": 0}
    client = client_of(small, 0)
    held = set(client.data.train_labels.tolist())
    own = client.selected(client.data.test_images).double().mean()
    foreign = [client_of(small, n).data for n in range(1, 4)]
    others = torch.cat(
        [
            client.selected(data.test_images)[[y not in held for y in data.test_labels.tolist()]]
            for data in foreign
        ]
    )
    assert own > 0.5
    assert others.double().mean() < own - 0.3


@pytest.mark.parametrize(("count", "alike"), [(1, True), (2, False), (2, True), (3, False)])
def test_a_client_with_few_samples_selects_what_is_like_them(count, alike, small):
    client = client_of(small)
    images = client.data.train_images
    own = images[:1].repeat(count, 1, 1, 1) if alike else images[:count]
    client.session._data = SimpleNamespace(train_images=own)
    selected = client.selected(torch.cat([own, -own]))
    assert selected[:count].any()
    assert not selected[count:].any()


@pytest.mark.parametrize(("kept", "teaches"), [(0, False), (1, False), (2, True)])
def test_one_kept_sample_teaches_nobody(kept, teaches, small):
    """Batch normalization cannot train on it."""
    size = read_config(small).run.plan.public_size
    received = {
        "teacher": np.full((size, 10), 0.1, np.float32),
        "kept": np.packbits(np.arange(size) < kept),
    }
    teachers = client_of(small).teachers("teacher", received)
    assert (teachers is not None) == teaches
