"""How samples become numbers: standardization by hand, and the same on nodes and new images."""

import json

import numpy as np
import pytest
import torch
from helpers import write_image_folder
from PIL import Image

import fedkd_flwr
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.data.clients import check_data, client_indices, load_client, public_pool
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.data.scaling import (
    Symmetric,
    scaling_from,
    scaling_of,
    standardized_per_channel,
    standardized_per_pixel,
)
from fedkd_flwr.data.settings import DataPlan, DataSettings
from fedkd_flwr.data.sources import load_images
from fedkd_flwr.export import load_model, read_card
from fedkd_flwr.export.predicting import predict

HERE = "tests.test_input_scaling"
PER_PIXEL = {"input_scaling": "per-pixel", "partition": "iid", "client_split": "75/0/25"}


def images_of(values):
    """Return uint8 images (n, 2, 1, 2)."""
    return torch.tensor(values, dtype=torch.uint8).view(-1, 2, 1, 2)


# Two images of two channels with two pixels.
TWO = images_of([[0, 10, 7, 200], [4, 30, 7, 100]])


def test_a_pixel_is_standardized_over_images():
    scaled = standardized_per_pixel(TWO)
    assert scaled.mean.flatten().tolist() == [2, 20, 7, 150]
    assert scaled.deviation.flatten().tolist() == [2, 10, 0, 50]
    expected = [
        [-2 / 2.001, -10 / 10.001, 0, 50 / 50.001],
        [2 / 2.001, 10 / 10.001, 0, -50 / 50.001],
    ]
    np.testing.assert_allclose(scaled(TWO).flatten(1), expected, rtol=1e-6)
    # A new image with another value where all others are 7.
    assert scaled(images_of([2, 20, 8, 150])).flatten().tolist() == pytest.approx([0, 0, 1000, 0])


def test_a_channel_is_standardized_over_images_and_pixels():
    scaled = standardized_per_channel(TWO)
    # Channel 0 has 0, 10, 4, 30: mean 11, mean square 254, variance 133.
    assert scaled.mean.shape == scaled.deviation.shape == (2, 1, 1)
    assert scaled.mean.flatten().tolist() == [11, 78.5]
    assert scaled.deviation[0].item() == pytest.approx(133**0.5)
    assert scaled(TWO)[1, 0, 0, 1].item() == pytest.approx((30 - 11) / (133**0.5 + 0.001))


def test_rows_of_numbers_have_one_channel_a_number():
    rows = torch.tensor([[1.0, -4.0], [3.0, 4.0]])
    for standardized in (standardized_per_pixel, standardized_per_channel):
        scaled = standardized(rows)
        assert scaled.mean.tolist() == [2, 0]
        assert scaled.deviation.tolist() == [1, 4]


@pytest.mark.parametrize("scaling", ["per-pixel", "per-channel"])
def test_statistics_are_those_of_the_whole_data_set(scaling):
    images = load_images("digits").images
    axes = (0,) if scaling == "per-pixel" else (0, 2, 3)
    scaled = scaling_of(DataSettings(input_scaling=scaling, max_samples=300))
    values = images.double()
    np.testing.assert_allclose(
        scaled.mean.flatten(), values.mean(dim=axes).flatten(), rtol=1e-6, atol=1e-6
    )
    np.testing.assert_allclose(
        scaled.deviation.flatten(),
        values.std(dim=axes, correction=0).flatten(),
        rtol=1e-6,
        atol=1e-6,
    )


def test_private_and_public_samples_are_scaled_alike():
    plan = DataPlan(DataSettings(**PER_PIXEL), 5)
    scaled, images = scaling_of(plan.settings), load_images("digits").images
    client = load_client(plan, 1)
    private = scaled(images[torch.from_numpy(client_indices(plan)[1])])
    assert sorted(row.numpy().tobytes() for row in private) == sorted(
        row.numpy().tobytes() for row in (*client.train_images, *client.test_images)
    )
    every = {row.numpy().tobytes() for row in scaled(images)}
    assert {row.numpy().tobytes() for row in public_pool(plan)} < every


def test_scaling_does_not_change_who_has_which_sample():
    plain = DataPlan(DataSettings(partition="iid"), 5)
    scaled = DataPlan(DataSettings(partition="iid", input_scaling="per-channel"), 5)
    assert all(map(np.array_equal, client_indices(plain), client_indices(scaled)))


def test_a_card_says_how_new_images_are_scaled(small, tmp_path):
    settings = {**small, "input-scaling": "per-pixel", "models": "mlp"}
    folders = {"models_dir": str(tmp_path / "models"), "output_dir": tmp_path / "run"}
    fedkd_flwr.run(settings, strategy="local", **folders)
    model = tmp_path / "models/0.safetensors"
    card = read_card(model)
    scaled = scaling_from(json.loads(json.dumps(card["preprocessing"])))
    expected = scaling_of(DataSettings(input_scaling="per-pixel"))
    assert torch.equal(scaled.mean, expected.mean)
    assert torch.equal(scaled.deviation, expected.deviation)

    pixels = load_images("digits").images[7, 0].numpy()
    Image.fromarray(pixels).save(tmp_path / "seven.png")
    (found,) = predict(model, [tmp_path / "seven.png"])
    by_hand = (pixels - expected.mean.numpy()) / (expected.deviation.numpy() + 0.001)
    probabilities = load_model(model)(torch.from_numpy(by_hand)[None]).softmax(1)
    assert found.probability == pytest.approx(probabilities.max().item(), rel=1e-4)


def test_a_card_without_statistics_is_symmetric():
    assert isinstance(scaling_from(Symmetric().described()), Symmetric)
    assert isinstance(scaling_from({}), Symmetric)


def test_a_node_with_its_own_data_knows_no_statistics(tmp_path):
    write_image_folder(tmp_path / "own", np.zeros((20, 28, 28), np.uint8), [0, 1] * 10)
    with pytest.raises(DataError, match=r"per-pixel needs; set input-scaling to symmetric"):
        load_client(DataPlan(DataSettings(**PER_PIXEL), 5), 0, str(tmp_path / "own"))


def floats():
    """Return thirty samples of the digits' shape, and their classes."""
    return np.full((30, 1, 28, 28), 0.5, dtype=np.float32), np.arange(30) % 2


@pytest.mark.parametrize(
    "names",
    [
        {"dataset": f"{HERE}:floats", "public_dataset": "digits"},
        {"dataset": "digits", "public_dataset": f"{HERE}:floats"},
    ],
)
def test_pixels_and_floats_have_no_statistics_in_common(names):
    settings = DataSettings(**{**PER_PIXEL, **names})
    with pytest.raises(DataError, match="floats has floating-point numbers and digits has pixels"):
        check_data(DataPlan(settings, 2), public_size=10)
    check_data(DataPlan(settings.model_copy(update={"input_scaling": "symmetric"}), 2), 10)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("input-scaling", "0..1", "symmetric"),
        ("class-proportions", "uniform", "random"),
        ("size-sigma", -1.0, "0"),
    ],
)
def test_other_values_are_refused(name, value, allowed):
    with pytest.raises(ConfigError, match=name) as refusal:
        read_config({name: value})
    assert allowed in str(refusal.value)
    assert "\n" not in str(refusal.value)
