"""How samples become numbers: standardization by hand, and the same on nodes and new images."""

import json

import numpy as np
import pytest
import torch
from helpers import write_image_folder
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits

import fedkd_flwr
from fedkd_flwr.config import read_config
from fedkd_flwr.data.checks import check_data
from fedkd_flwr.data.clients import (
    client_indices,
    load_client,
    public_pool,
    public_set,
    scaling_of_plan,
)
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.data.scaling import (
    Symmetric,
    scaling_from,
    scaling_of,
    standardized,
    standardized_by_column,
)
from fedkd_flwr.data.settings import DataPlan, DataSettings
from fedkd_flwr.data.sources import load_images
from fedkd_flwr.export import load_model, predict, read_card

HERE = "tests.test_input_scaling"
PER_PIXEL = {"input_scaling": "per-pixel", "partition": "iid", "client_split": "75/0/25"}


def images_of(values):
    """Return uint8 images (n, 2, 1, 2)."""
    return torch.tensor(values, dtype=torch.uint8).view(-1, 2, 1, 2)


# Two images of two channels with two pixels.
TWO = images_of([[0, 10, 7, 200], [4, 30, 7, 100]])


def test_a_pixel_is_standardized_over_images():
    scaled = standardized(TWO, by_channel=False)
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
    scaled = standardized(TWO, by_channel=True)
    # Channel 0 has 0, 10, 4, 30: mean 11, mean square 254, variance 133.
    assert scaled.mean.shape == scaled.deviation.shape == (2, 1, 1)
    assert scaled.mean.flatten().tolist() == [11, 78.5]
    assert scaled.deviation[0].item() == pytest.approx(133**0.5)
    assert scaled(TWO)[1, 0, 0, 1].item() == pytest.approx((30 - 11) / (133**0.5 + 0.001))


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


def test_a_node_with_its_own_data_knows_no_statistics(tmp_path):
    write_image_folder(tmp_path / "own", np.zeros((20, 28, 28), np.uint8), [0, 1] * 10)
    with pytest.raises(DataError, match="per-pixel needs; set input-scaling to auto"):
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


def test_public_images_can_stay_raw(tmp_path):
    raw = DataPlan(DataSettings(public_scaling="raw", max_samples=300), 2)
    scaled = DataPlan(DataSettings(max_samples=300), 2)
    assert public_pool(raw).max() == 255
    torch.testing.assert_close(public_pool(raw) / 127.5 - 1, public_pool(scaled))
    assert torch.equal(load_client(raw, 0).train_images, load_client(scaled, 0).train_images)
    pixels = public_set(raw)[:20, 0].numpy()
    write_image_folder(tmp_path / "own", pixels, [0, 1] * 10)
    assert load_client(raw, 0, str(tmp_path / "own")).in_public == 20


def test_floats_have_no_raw_pixels():
    settings = DataSettings(dataset="digits", public_dataset=f"{HERE}:floats", public_scaling="raw")
    with pytest.raises(DataError, match="leaves images at 0 to 255, and the public samples are"):
        check_data(DataPlan(settings, 2), public_size=10)


def skewed(seed=0):
    """Return 90 rows of a large, a constant and a small number, some missing, and three classes."""
    rows = np.random.default_rng(seed).normal(size=(90, 3)) * [1e4, 0, 1e-3] + [5e5, 7, 0]
    rows[::9, 2] = np.nan
    return rows, np.arange(90) % 3


def complete(seed=1):
    return np.nan_to_num(skewed(seed)[0]), skewed(seed)[1]


def test_numbers_are_standardized_by_the_training_samples_of_all_clients():
    settings = DataSettings(dataset=f"{HERE}:skewed", partition="iid", held_out_size=15)
    plan = DataPlan(settings, 3)
    rows = skewed()[0].astype(np.float32).astype(np.float64)
    train = rows[np.concatenate([load_client(plan, n).positions[0] for n in range(3)])]
    assert len(train) == 3 * 18  # 70% of 75
    mean, deviation = np.nanmean(train, axis=0), np.nanstd(train, axis=0)
    deviation[1] = 1.0
    for n in range(3):
        client = load_client(plan, n)
        expected = (rows[client.positions[2]] - mean) / deviation
        np.testing.assert_allclose(client.test_images, expected, rtol=1e-3, atol=1e-3)
    assert np.nanstd(public_pool(plan), axis=0)[[0, 2]] == pytest.approx(1, abs=0.4)


def test_channels_are_standardized_and_what_is_scaled_already_is_not():
    images = DataSettings(dataset=f"{HERE}:floats", partition="iid", held_out_size=0)
    assert scaling_of_plan(DataPlan(images, 2)).mean.shape == (1, 1, 1)
    assert isinstance(scaling_of_plan(DataPlan(DataSettings(), 2)), Symmetric)
    assert read_config({}).run.data.input_scaling == "symmetric"


def nodes_plan(**changes):
    settings = {"dataset": "folder:elsewhere", "configured_shape": "3", "configured_classes": 3}
    return DataPlan(DataSettings(**{**settings, "public_dataset": "none", **changes}), 2)


def test_nodes_with_their_own_tables_share_the_statistics_of_the_public_set():
    path = f"{HERE}:skewed"
    plan = nodes_plan(public_dataset=f"{HERE}:complete").at_node(path)
    by_public = standardized_by_column(torch.from_numpy(complete()[0]).float())
    client = load_client(plan, 0, path)
    assert torch.equal(client.scaling.mean, by_public.mean)
    torch.testing.assert_close(public_pool(plan).mean(dim=0), torch.zeros(3), atol=1e-3, rtol=0)


def test_images_of_a_node_are_not_scaled_as_numbers_of_others(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    write_image_folder(tmp_path / "own", images, [0, 1] * 10)
    settings = DataSettings(dataset=f"{HERE}:floats", partition="iid", held_out_size=5)
    with pytest.raises(DataError, match="this node has images, and the samples of the run are"):
        load_client(DataPlan(settings, 2), 0, str(tmp_path / "own"))


def test_without_a_public_set_an_operator_names_the_statistics(tmp_path):
    path = f"{HERE}:skewed"
    plan = nodes_plan().at_node(path)
    with pytest.raises(DataError, match="set input-statistics in the node config to a JSON file"):
        load_client(plan, 0, path)
    file = tmp_path / "statistics.json"
    file.write_text(json.dumps({"mean": [5e5, 7, 0], "deviation": [1e4, 1, 1e-3]}))
    client = load_client(plan, 0, path, statistics=str(file))
    rows = torch.from_numpy(skewed()[0]).float()
    expected = (rows - torch.tensor([5e5, 7, 0])) / torch.tensor([1e4, 1, 1e-3])
    samples = expected[torch.from_numpy(client.positions[0])]
    torch.testing.assert_close(client.train_images, samples, equal_nan=True)
    again = scaling_from(json.loads(json.dumps(client.scaling.described())))
    torch.testing.assert_close(again(rows), expected, equal_nan=True)
    for mean, deviation in (
        ([0], [1]),
        ([0, 0, 0], [1]),
        (0, 1),
        ([0, 0, 0], [1, 0, 1]),
        ([0, float("nan"), 0], [1, 1, 1]),
        ([0, 0, 0], [1, float("inf"), 1]),
    ):
        file.write_text(json.dumps({"mean": mean, "deviation": deviation}))
        with pytest.raises(DataError, match="needs the lists mean and deviation, each of 3 num"):
            load_client(plan, 1, path, statistics=str(file))


def cancer():
    return load_breast_cancer(return_X_y=True)


DIGITS = load_digits()
AS_ARRAYS = {
    "rows": DIGITS.data / 16 * 255,
    "bytes": np.uint8(DIGITS.data * 15),
    "no channel": np.uint8(DIGITS.images * 15),
    "channels last": np.uint8(DIGITS.images[..., None] * 15),
    "floats to 255": DIGITS.images[:, None] / 16 * 255,
}


@pytest.mark.parametrize("layout", AS_ARRAYS)
def test_pixels_are_scaled_in_any_layout(layout, own, tmp_path):
    settings = {**own, "strategy": "fedavg", "num-server-rounds": 2, "client-split": "70/10/20"}
    data = AS_ARRAYS[layout], DIGITS.target
    run = fedkd_flwr.run(settings, dataset=data, output_dir=tmp_path / "run")
    assert run.rounds["accuracy_mean"].iloc[-1] > 0.85


@pytest.mark.parametrize(("scaling", "low", "high"), [("symmetric", 0.5, 0.75), ("auto", 0.92, 1)])
def test_a_table_whose_columns_differ_in_spread_needs_scaling(scaling, low, high, tmp_path, logged):
    """0.63 of the samples are in one class."""
    settings = {"strategy": "fedavg", "models": "mlp", "partition": "iid", "num-clients": 3}
    settings |= {"dataset": f"{HERE}:cancer", "input-scaling": scaling, "device": "cpu"}
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    assert low < run.rounds["accuracy_mean"].iloc[-1] < high
    said = any("spreads of columns differ by a factor of 2.15e+05" in line for line in logged())
    assert said == (scaling == "symmetric")
