"""Custom data from a function: any shape, private and public."""

import numpy as np
import pytest
import torch
from helpers import client_of, run_with

import fedkd_flwr
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.data.clients import check_data
from fedkd_flwr.data.custom_data import as_data_set, call_for_data
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.data.sources import load_images, load_labels, load_node_data

HERE = "test_custom_data"
SERIES = f"{HERE}:series"
WINES = "examples.own_data:wines"
PERCEPTRON = "examples.own_data:Perceptron"


def series():
    """120 series of two channels and five steps; the class is the sign of their mean."""
    samples = np.random.default_rng(0).normal(size=(120, 2, 5))
    return samples, (samples.mean(axis=(1, 2)) > 0).astype(np.int8)


def images():
    pixels = np.random.default_rng(0).integers(0, 256, (90, 3, 8, 8), dtype=np.uint8)
    return pixels, np.arange(90) % 3


def floats(low=0.0, high=1.0):
    pixels, labels = images()
    return pixels / 255 * (high - low) + low, labels


def floats_of_both_signs():
    return floats(-1.0, 1.0)


def a_table(labels=(0, 1, 0), samples=((1, 2), (3, 4), (5, 6))):
    return samples, labels


CASES = {
    "three_parts": (lambda: (1, 2, 3), r"returned a tuple; it should be \(\) -> \(samples"),
    "nothing": (lambda: None, "returned a NoneType"),
    "words": (lambda: a_table(samples="abc"), "returned a str that is no array of numbers"),
    "ragged": (lambda: a_table(samples=[[1], [2, 3], [4]]), "returned a list that is no array"),
    "few_labels": (lambda: a_table((0, 1)), r"samples \(3, 2\) and labels \(2,\)"),
    "no_sample": (lambda: (np.empty((0, 3)), np.empty(0)), r"samples \(0, 3\)"),
    "flat": (lambda: a_table(samples=(1, 2, 3)), r"samples \(3,\)"),
    "broken": (lambda: 1 / 0, "fails: ZeroDivisionError: division by zero"),
    "not_finite": (lambda: a_table(samples=[[1.0], [np.nan], [0.0]]), "not all finite"),
    "halves": (lambda: a_table((0, 0.5, 1)), "labels that are not all whole numbers"),
    "negative": (lambda: a_table((0, -1, 1)), "labels that are not all whole numbers"),
    "one_class": (lambda: a_table((0, 0, 0)), "labels of one class"),
}
for _name, (_function, _) in CASES.items():
    globals()[_name] = _function
not_callable = 3


@pytest.fixture
def own(own):
    return {**own, "dataset": SERIES, "models": f"mlp,{HERE}:linear"}


def linear(shape, classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape[0] * shape[1], classes))


def test_shape_and_classes_are_found_in_the_data():
    found = load_images(SERIES)
    assert found.images.shape == (120, 2, 5)
    assert found.images.dtype == torch.float32
    np.testing.assert_array_equal(load_labels(SERIES), series()[1])
    data = read_config({"dataset": SERIES}).run.data
    assert (data.image_shape, data.num_classes) == ((2, 5), 2)
    pixels, _ = call_for_data(f"{HERE}:images")
    assert pixels.dtype == torch.uint8


@pytest.mark.parametrize("strategy", ["kt-pfl", "fedproto", "fml"])
def test_series_are_trained_on_as_they_are(strategy, own, tmp_path):
    run = fedkd_flwr.run({**own, "strategy": strategy}, output_dir=tmp_path / "run")
    assert list(run.rounds["failures"]) == [0]
    data = client_of(own).data
    assert data.shape == (2, 5)
    everything = torch.from_numpy(series()[0]).float()
    assert all((everything == sample).all(dim=(1, 2)).any() for sample in data.train_images)
    assert data.public_images.shape == (40, 2, 5)


def test_the_example_of_a_table(own, tmp_path):
    changes = {"dataset": WINES, "models": f"mlp,{PERCEPTRON}", "local-epochs": 4}
    run = fedkd_flwr.run({**own, **changes}, output_dir=tmp_path / "run")
    assert run.summary["last_round"]["accuracy_mean"] > 0.6


@pytest.mark.parametrize("name", [*CASES, "not_callable", "missing"])
def test_invalid_data_are_refused_in_one_line(name, own, tmp_path):
    sentence = {"not_callable": "is a int, and should be callable", "missing": "holds no missing"}
    expected = CASES[name][1] if name in CASES else sentence[name]
    with pytest.raises((ConfigError, DataError), match=expected) as refused:
        fedkd_flwr.run({**own, "dataset": f"{HERE}:{name}"}, output_dir=tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_any_memory_layout_and_byte_order_of_numbers_is_accepted():
    samples, labels = series()
    backwards = np.flip(samples, axis=2).astype(">f4"), labels[::-1]
    found, classes = as_data_set("data", backwards)
    np.testing.assert_array_equal(found, np.flip(samples, axis=2).astype(np.float32))
    np.testing.assert_array_equal(classes, labels[::-1])
    views, _ = as_data_set("data", (samples[:, :, ::-1], labels))
    np.testing.assert_array_equal(views, found)


def test_shape_and_classes_must_match_the_config(own):
    for changes, sentence in (
        ({"image-shape": "5,2"}, r"has samples \(2, 5\); image-shape is 5,2"),
        ({"dataset": f"{HERE}:images", "num-classes": 2}, "labels up to 2; num-classes is 2"),
    ):
        with pytest.raises(DataError, match=sentence):
            check_data(read_config({**own, **changes}).run.data_plan)
    more = client_of({**own, "num-classes": 4, "image-shape": "2, 5", "strategy": "local"})
    assert more.data.classes == 4
    with pytest.raises(ConfigError, match="image-shape = '2x5'"):
        read_config({**own, "image-shape": "2x5"})


def test_with_shape_and_classes_set_nothing_is_loaded(own):
    told = {"dataset": "no_such_package.data:load", "num-classes": 3, "image-shape": "13"}
    run = read_config({**own, **told}).run
    assert run.server_plan().num_classes == 3
    assert run.data.image_shape == (13,)


def test_custom_public_data(own, tmp_path):
    changes = {"public-dataset": WINES}
    with pytest.raises(DataError, match=r"wines has samples \(13,\), and the private ones are"):
        client_of({**own, **changes}).data  # noqa: B018
    changes = {"dataset": "digits", "models": "mlp", "public-dataset": f"{HERE}:images"}
    run = fedkd_flwr.run({**own, **changes}, output_dir=tmp_path / "run")
    assert list(run.rounds["failures"]) == [0]
    data = client_of({**own, **changes}).data
    assert data.public_images.shape == (90, 1, 28, 28)
    with pytest.raises(DataError, match="is the private data set"):
        check_data(read_config({**own, "public-dataset": SERIES}).run.data_plan, 20)


@pytest.mark.parametrize(
    ("private", "public", "stays", "becomes"),
    [
        ("floats", "images", "floats", "images"),
        ("images", "floats", "floats", "images"),
        ("floats_of_both_signs", "images", None, None),
        ("floats", "floats_of_both_signs", None, None),
    ],
)
def test_different_scales_are_warned_about_once(private, public, stays, becomes, own, logged):
    changes = {"dataset": f"{HERE}:{private}", "public-dataset": f"{HERE}:{public}"}
    check_data(read_config({**own, **changes}).run.data_plan, 20)
    expected = (
        f"the samples of {HERE}:{stays} keep their scale from 0 to 1, and the images "
        f"of {HERE}:{becomes} are scaled to -1 to 1: scale the former to -1 to 1 if they are "
        "images too"
    )
    assert logged() == ([expected] if stays else [])


def test_a_different_scale_from_the_catalogue_is_warned_about(own, logged):
    changes = {"dataset": f"{HERE}:floats", "public-dataset": "digits"}
    check_data(read_config({**own, **changes}).run.data_plan, 20)
    (said,) = logged()
    assert "the images of digits are scaled to -1 to 1" in said


def test_a_node_loads_its_data_from_a_function(own, tmp_path):
    run, _ = run_with(client_app, own, tmp_path / "run", node_configs={1: {"data-path": SERIES}})
    sizes = run.clients.set_index("partition_id")["num_examples"]
    assert sizes[0] == 24
    assert sizes[1] == pytest.approx(72, abs=15)
    with pytest.raises(DataError, match=r"has samples \(2, 5\), the run's are \(13,\)"):
        load_node_data(SERIES, (13,), 2)
    with pytest.raises(DataError, match="there is no folder"):
        load_node_data("nowhere.at_all", (13,), 2)


def test_runs_on_different_data_are_not_compared(own, tmp_path):
    runs = [
        fedkd_flwr.run(
            {**own, "dataset": dataset, "models": "mlp", "strategy": "local"},
            output_dir=tmp_path / str(n),
        )
        for n, dataset in enumerate((SERIES, WINES))
    ]
    with pytest.raises(ConfigError, match=f"different data .*dataset .{WINES}, {SERIES}"):
        fedkd_flwr.compare(runs)
