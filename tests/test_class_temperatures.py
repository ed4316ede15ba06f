"""Temperatures of classes (ReT-FHD, Qi et al. 2025): their update, the teacher, and the limits."""

import numpy as np
import pytest
import torch
from helpers import Witness, client_of, random_simplex, run_with
from torch.nn import functional

import fedkd_flwr
from fedkd_flwr.clients.kt_pfl import TEMPERATURES
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.training.class_temperatures import (
    HIGHEST,
    LOWEST,
    adapted,
    at_class_temperatures,
    losses_by_class,
)
from fedkd_flwr.training.jobs import complete

NAN = float("nan")


def test_losses_by_class_are_means_over_the_samples_of_a_class():
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 2, 0, 0, 2])
    single = functional.cross_entropy(logits, labels, reduction="none")
    expected = [single[[0, 2, 3]].mean(), NAN, single[[1, 4]].mean()]
    torch.testing.assert_close(
        losses_by_class(logits, labels), torch.tensor(expected), equal_nan=True
    )


def test_hard_classes_get_a_lower_temperature_by_hand():
    """The mean loss is 2, and the largest gap 2: the changes are +0.05, +0.05 and -0.1."""
    losses = torch.tensor([1.0, NAN, 1.0, 4.0])
    changed = adapted(torch.tensor([1.0, 3.0, 2.0, 1.0]), losses, rate=0.1)
    torch.testing.assert_close(changed, torch.tensor([1.05, 3.0, 2.05, 0.9]))
    assert adapted(torch.ones(2), torch.tensor([NAN, 5.0]), rate=0.1).tolist() == [1, 1]


def test_temperatures_stay_within_their_limits():
    temperatures = torch.ones(2)
    for _ in range(100):
        temperatures = adapted(temperatures, torch.tensor([0.0, 1.0]), rate=0.1)
    assert temperatures.tolist() == [HIGHEST, LOWEST]


def test_the_teachers_logits_are_divided_by_the_temperature_of_its_class():
    logits = 4 * torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
    temperatures = torch.tensor([0.5, 1.0, 2.0, 3.0, 5.0])
    mine = temperatures[logits.argmax(dim=1)][:, None]
    torch.testing.assert_close(
        at_class_temperatures(logits.softmax(dim=1), temperatures),
        (logits / mine).softmax(dim=1),
    )
    certain = torch.eye(5)
    torch.testing.assert_close(at_class_temperatures(certain, temperatures), certain)
    many = torch.from_numpy(random_simplex(np.random.default_rng(0), 3, 400)).float()
    scaled = at_class_temperatures(many, torch.full((400,), 5.0))
    torch.testing.assert_close(scaled.sum(dim=1), torch.ones(3))


def test_a_client_distills_the_scaled_teacher_and_stores_its_temperatures(small, tmp_path):
    small |= {"strategy": "fedmd", "models": "mlp", "num-server-rounds": 3}
    key = "kt-pfl.class-temperature-rate"
    off, on, none = Witness(), Witness(), Witness()
    run_with(off, small, tmp_path / "off", **{key: 0.0})
    run_with(none, small, tmp_path / "none")
    whole, _ = run_with(on, small, tmp_path / "on", **{key: 0.5})
    for place, arrays in none.up.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(off.up[place][name], array)
        assert on.up[place].keys() == arrays.keys()
    assert on.metrics.keys() == none.metrics.keys()
    # Temperatures begin at 1 in round 1, so that the first teacher is scaled in round 2.
    first, second = ([w.up[t, "train", 0]["predictions"] for w in (on, none)] for t in (1, 2))
    np.testing.assert_array_equal(*first)
    assert not np.array_equal(*second)
    fedkd_flwr.run({**small, key: 0.5}, output_dir=tmp_path / "run", num_server_rounds=1)
    resumed = fedkd_flwr.resume(tmp_path / "run", num_server_rounds=3)
    assert list(resumed.clients["loss"]) == list(whole.clients["loss"])


def test_temperatures_follow_the_model_that_was_just_trained(small):
    client = client_of(small | {"kt-pfl.class-temperature-rate": 0.2}, strategy="kt-pfl")
    complete(client.train({}, 1, "train"))
    data, first = client.data, client.class_temperatures()
    with torch.no_grad():
        losses = losses_by_class(client.model.eval()(data.train_images), data.train_labels)
    torch.testing.assert_close(first, adapted(torch.ones(10), losses, rate=0.2))
    assert (first[data.class_counts == 0] == 1).all()
    complete(client.train({}, 2, "train"))
    assert (client.class_temperatures() - first).abs().max() == pytest.approx(0.2)
    assert TEMPERATURES in client.memory.tensors


def test_impossible_rates_are_refused_in_one_line(small):
    key = "kt-pfl.class-temperature-rate"
    for changes, sentence in (
        ({key: 2}, f"{key} = 2: it should be less than or equal to 1"),
        (
            {key: 0.1, "dp-sgd-noise-multiplier": 1.0, "models": "mlp"},
            f"{key} uses losses on training samples",
        ),
    ):
        with pytest.raises(ConfigError, match=sentence) as caught:
            read_config({**small, **changes})
        assert "\n" not in str(caught.value)
