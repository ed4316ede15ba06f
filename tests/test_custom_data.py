"""Custom data from a function: any shape, private and public."""

import re
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Context, RecordDict
from helpers import assert_refused, change_json, client_of, run_with
from sklearn.datasets import load_diabetes
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from torch import nn
from torch.utils.data import TensorDataset

import fedkd_flwr
from examples import own_data
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.clients.policy import TRUSTED_NODE
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.data import checks, sources
from fedkd_flwr.data.checks import check_data, warnings_about_data
from fedkd_flwr.data.custom_data import as_data_set, call_for_data
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.data.settings import DataSettings
from fedkd_flwr.data.sources import count_classes, load_images, load_labels, load_node_data
from fedkd_flwr.models.build import build_model, doubts

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
    "four_parts": (lambda: (1, 2, 3, 4), r"returned a tuple; it should be \(\) -> \(samples"),
    "nothing": (lambda: None, "returned a NoneType"),
    "words": (lambda: a_table(samples="abc"), "returned a str that is no array of numbers"),
    "words_of_classes": (lambda: a_table(list("aba")), "return_inverse=True.* numbers words"),
    "ragged": (lambda: a_table(samples=[[1], [2, 3], [4]]), "returned a list that is no array"),
    "few_labels": (lambda: a_table((0, 1)), r"samples \(3, 2\) and labels \(2,\)"),
    "no_sample": (lambda: (np.empty((0, 3)), np.empty(0)), r"samples \(0, 3\)"),
    "flat": (lambda: a_table(samples=(1, 2, 3)), r"samples \(3,\)"),
    "broken": (lambda: 1 / 0, "fails: ZeroDivisionError: division by zero"),
    "of_a_dataset": (lambda: TensorDataset(torch.eye(3)), "a TensorDataset; .*; stack what a Dat"),
    "column_of_labels": (lambda: a_table([[0], [1], [0]]), r"; write labels\.reshape\(-1\)"),
    "one_hot": (lambda: a_table(np.eye(3)), r"; write labels\.argmax\(axis=1\) if one-hot"),
    "nearly_equal": (
        lambda: a_table(samples=[[1, 1.7e9], [2, 1.7e9 + 60], [3, np.nan]]),
        r"samples has numbers near 1\.7e\+09 that differ by less than a millionth",
    ),
    "not_finite": (lambda: a_table(samples=[[1.0], [np.inf], [0.0]]), "not all finite"),
    "missing_one": (
        lambda: a_table([0, 1] * 60, [[1.0], [np.nan]] * 60),
        "60 of 120 samples of .* have missing values, which mlp does not take: fill them in",
    ),
    "masked": (lambda: a_table(np.ma.masked_equal([0, 1, 9], 9)), "an array with 1 masked values"),
    "regression": (lambda: load_diabetes(return_X_y=True), "labels of float64, as of a regression"),
    "owners_of_two": (lambda: (*a_table(), ["a", "b"]), r"returned clients \(2,\) of <U1"),
    "owners_unknown": (lambda: (*a_table(), [0.5, 1, 2]), r"returned clients \(3,\) of float64"),
    "negative": (lambda: a_table((0, -1, 1)), "labels that are not all whole numbers"),
    "of_two_orders": (
        lambda: (pd.DataFrame(a_table()[1]), pd.Series([0, 1, 0]).iloc[::-1]),
        r"tables whose rows have different indexes, .* return labels.loc\[samples.index\]",
    ),
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
    pixels, *_ = call_for_data(f"{HERE}:images")
    assert pixels.dtype == torch.uint8


@pytest.mark.parametrize("strategy", ["kt-pfl", "fedproto", "fml"])
def test_series_are_trained_on_as_they_are(strategy, own, tmp_path):
    own = {**own, "strategy": strategy, "input-scaling": "symmetric"}
    run = fedkd_flwr.run(own, output_dir=tmp_path / "run")
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
    assert_refused(expected, {**own, "dataset": f"{HERE}:{name}"}, tmp_path / "run")


def test_any_memory_layout_and_byte_order_of_numbers_is_accepted():
    samples, labels = series()
    backwards = np.flip(samples, axis=2).astype(">f4"), labels[::-1]
    found, classes, _ = as_data_set("data", backwards)
    np.testing.assert_array_equal(found, np.flip(samples, axis=2).astype(np.float32))
    np.testing.assert_array_equal(classes, labels[::-1])
    views, *_ = as_data_set("data", (samples[:, :, ::-1], labels))
    np.testing.assert_array_equal(views, found)


def test_a_tensor_that_requires_a_gradient_is_detached():
    weights = torch.ones(3, 2, requires_grad=True)
    assert not as_data_set("data", (weights * 2, [0, 1, 0])).samples.requires_grad


def gaps():
    """120 rows; the second number, missing in every third row, is the class."""
    labels = np.arange(120) % 2
    samples = np.random.default_rng(0).normal(size=(120, 3))
    samples[:, 1] = np.where(np.arange(120) % 3, labels, np.nan)
    return samples, labels


def table_of_three():
    return np.nan_to_num(gaps()[0]), gaps()[1]


@pytest.mark.parametrize(
    ("model", "refusal"),
    [
        ("sklearn.ensemble:HistGradientBoostingClassifier", ""),
        (make_pipeline(SimpleImputer(), LogisticRegression()), ""),
        ("sklearn.linear_model:LogisticRegression", "some of them missing: .* contains NaN"),
    ],
    ids=["takes_them", "imputes_them", "refuses_them"],
)
def test_missing_values_are_for_estimators_that_take_them(model, refusal, own, tmp_path):
    settings = {**own, "strategy": "kt-pfl", "dataset": f"{HERE}:gaps", "models": model}
    with pytest.raises(ConfigError, match=refusal) if refusal else nullcontext():
        run = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
        assert run.rounds["accuracy_mean"].iloc[-1] > 0.6


def test_a_node_with_a_network_refuses_missing_values(own):
    node = {"partition-id": 0, "data-path": f"{HERE}:gaps", **TRUSTED_NODE}
    run_config = read_config({**own, "dataset": f"{HERE}:table_of_three", "models": "mlp"}).flat()
    context = Context(1, 1, node, RecordDict(), run_config)
    with pytest.raises(DataError, match="40 of 120 samples of this node have missing values"):
        client_of({}, context=context).data  # noqa: B018


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
    changes["input-scaling"] = "symmetric"
    check_data(read_config({**own, **changes}).run.data_plan, 20)
    expected = (
        f"the samples of {HERE}:{stays} keep their scale from 0 to 1, and the images "
        f"of {HERE}:{becomes} are scaled to -1 to 1: scale the former to -1 to 1 if they are "
        "images too"
    )
    assert logged() == ([expected] if stays else [])


def in_other_units():
    samples, labels = own_data.wines()
    return 1000 * samples, labels


def moved():
    samples, labels = own_data.wines()
    return samples + 1e4, labels


def cut_to_whole_numbers():
    """Images from 0 to 1 that were made uint8 without a factor."""
    samples, labels = images()
    return (samples / 255).round().astype(np.uint8), labels


@pytest.mark.parametrize(
    ("private", "public", "warned"),
    [
        (WINES, f"{HERE}:in_other_units", True),
        (f"{HERE}:in_other_units", WINES, True),
        (WINES, f"{HERE}:moved", True),
        (f"{HERE}:images", f"{HERE}:cut_to_whole_numbers", True),
        ("digits", f"{HERE}:images", False),
    ],
)
def test_public_samples_in_other_units_are_warned_about(private, public, warned, own, logged):
    check_data(read_config({**own, "dataset": private, "public-dataset": public}).run.data_plan, 20)
    assert ["bring both to one scale" in line for line in logged()] == [True] * warned


def test_images_that_are_all_but_black_are_warned_about(own, logged):
    changes = {"dataset": f"{HERE}:cut_to_whole_numbers"}
    check_data(read_config({**own, **changes}).run.data_plan)
    (line,) = logged()
    assert line.startswith(f"the pixels of {HERE}:cut_to_whole_numbers are at most 1, and are read")


def test_a_node_loads_its_data_from_a_function(own, tmp_path):
    run, _ = run_with(client_app, own, tmp_path / "run", node_configs={1: {"data-path": SERIES}})
    sizes = run.clients.set_index("partition_id")["num_examples"]
    assert sizes[0] == 24
    assert sizes[1] == pytest.approx(72, abs=15)
    with pytest.raises(DataError, match=r"has samples \(2, 5\), the run's are \(13,\)"):
        load_node_data(SERIES, (13,), 2)
    with pytest.raises(DataError, match="there is no folder"):
        load_node_data("nowhere.at_all", (13,), 2)


# ---- Mistakes that are warned about or refused ---------------------------------------


CALLS = []


def table(rows=90):
    return np.random.default_rng(0).normal(size=(rows, 20)), np.arange(rows) % 3


def restless():
    CALLS.append(1)
    samples, labels = table()
    return samples + len(CALLS), labels


def read_only():
    samples, labels = table()
    samples.flags.writeable = False
    return samples, labels


def from_one():
    samples, labels = table()
    return samples, labels + 1


def with_gaps():
    samples, labels = table()
    return samples, labels * 5


def with_clients():
    return *table(), np.arange(90) % 3


def channels_last(scale=1):
    pixels = np.random.default_rng(0).integers(0, 256, (90, 8, 9, 3), dtype=np.uint8)
    return pixels / scale, np.arange(90) % 3


def squares_scaled():
    pixels, labels = channels_last(255)
    return pixels[:, :, :8], labels


def gray_without_channels():
    pixels, labels = channels_last()
    return pixels[..., 0], labels


def in_one_order():
    samples, labels = table()
    rows = np.arange(5, 5 + len(samples))
    return pd.DataFrame(samples, index=rows), pd.Series(labels, index=rows)


def channels_last_in_whole_numbers():
    pixels, labels = channels_last()
    return pixels.astype(np.uint8), labels


def channels_last_scaled():
    return channels_last(255)


def tiny_images():
    return np.random.default_rng(0).integers(0, 256, (90, 1, 4, 4), np.uint8), np.arange(90) % 3


def softmax_net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes), nn.Softmax(dim=1))


@pytest.fixture(autouse=True)
def fresh():
    """Each test calls the functions for the first time."""
    CALLS.clear()
    for cache in (sources._load_images, sources._load_labels, count_classes, checks._is_repeatable):
        cache.cache_clear()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("table", None),
        ("read_only", None),
        ("restless", "returns other data on a second call, and each process calls it"),
        (
            "from_one",
            "the labels of .* go from 1 to 3, and 1 of the classes from 0 to 3 have no samp",
        ),
        (
            "with_gaps",
            "the labels of .* go from 0 to 10, and 8 of the classes from 0 to 10 have no",
        ),
        ("channels_last", r"samples \(90, 8, 9, 3\) of .* look like images with"),
        ("channels_last_in_whole_numbers", "with channels last, and are read as numbers"),
        ("with_clients", "returns the client of each sample, which partition = iid does not read"),
        ("channels_last_scaled", None),
        ("squares_scaled", r"samples \(90, 8, 8, 3\) of .* look like images with channels last"),
        (
            "gray_without_channels",
            r"samples \(90, 8, 9\) of .* look like gray images, and are read",
        ),
        ("in_one_order", None),
        ("tiny_images", None),
    ],
)
@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
def test_each_mistake_has_one_line(name, sentence, own, logged, tmp_path):
    changes = {"dataset": f"{HERE}:{name}", "models": "mlp", "strategy": "local"}
    for n in range(2):
        fedkd_flwr.run({**own, **changes}, output_dir=tmp_path / str(n))
    lines = [line for line in logged() if HERE in line]
    assert len(lines) == (2 if sentence else 0)
    assert all(re.search(sentence, line) and "\n" not in line for line in lines)


def test_a_number_of_classes_says_that_class_0_may_be_absent():
    name = f"{HERE}:from_one"
    assert len(warnings_about_data(DataSettings(dataset=name))) == 1
    assert warnings_about_data(DataSettings(dataset=name, configured_classes=4)) == []


def test_a_network_that_returns_probabilities_is_warned_about(own, logged, tmp_path):
    changes = {"dataset": f"{HERE}:table", "strategy": "local"}
    models = f"mlp,{HERE}:softmax_net"
    fedkd_flwr.run({**own, **changes, "models": models}, output_dir=tmp_path / "run")
    (line,) = [line for line in logged() if HERE in line]
    assert line.startswith(f"{HERE}:softmax_net returns rows that sum to one")
    assert doubts(build_model("mlp", (20,), 3), torch.randn(3, 20)) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"dataset": f"{HERE}:table", "models": "mlp,lenet"},
            r"local: model lenet takes no samples \(n, 20\); built-in models that do: mlp; or set",
        ),
        (
            {"dataset": f"{HERE}:table", "strategy": "fml", "fml.shared-model": "cnn"},
            r"fml: model cnn takes no samples \(n, 20\)",
        ),
    ],
)
def test_built_in_models_that_do_not_fit_are_refused(changes, sentence, own, tmp_path):
    assert_refused(
        sentence, {**own, "models": "mlp", "strategy": "local", **changes}, tmp_path / "run"
    )


def test_changed_data_are_reported_where_they_are_read(own, logged, tmp_path):
    changes = {"dataset": f"{HERE}:table", "models": "mlp", "strategy": "local"}
    runs = [
        fedkd_flwr.run({**own, **changes, **method}, output_dir=tmp_path / str(n))
        for n, method in enumerate([{}, {"strategy": "fedavg"}])
    ]
    assert set(runs[0].description["data"]) == {"dataset", "split"}
    digest = "is not the same in all of them"
    assert not [note for note in fedkd_flwr.compare(runs).notes if digest in note]
    change_json(runs[1].path / "config.json", data={"dataset": "0" * 64})
    (note,) = [note for note in fedkd_flwr.compare(tmp_path).notes if digest in note]
    assert note.startswith("The dataset of these runs")
    fedkd_flwr.resume(runs[1].path, num_server_rounds=2, allow_code=HERE)
    assert "The dataset of this run has changed since the run was started." in logged()
    told = [f"The dataset of {n} has changed since the run was started." for n in (0, 1)]
    for run in runs:
        fedkd_flwr.client_data(fedkd_flwr.load_run(run.path, HERE), 0)
    assert [logged().count(line) for line in told] == [0, 1]


# ---- Copies --------------------------------------------------------------------------


def four_times():
    """Random labels, each row four times: 53% of test samples are told where chance is 33."""
    generator = np.random.default_rng(0)
    samples, labels = generator.normal(size=(60, 20)), generator.integers(0, 3, 60)
    return samples.repeat(4, axis=0), labels.repeat(4)


def each_once():
    samples, labels = four_times()
    return samples[::4], labels[::4]


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        ({}, ["samples of the same client (2 of 2 clients)", "of 40 public samples are copies"]),
        ({"strategy": "local"}, ["samples of the same client (2 of 2 clients)"]),
        ({"dataset": f"{HERE}:each_once", "public-dataset": f"{HERE}:four_times"},
         ["of 240 public samples are copies of private training samples"]),
        ({"dataset": f"{HERE}:each_once"}, []),
    ],
)  # fmt: skip
def test_copies_of_training_samples_are_counted(changes, sentences, own, logged, tmp_path):
    own |= {"models": "mlp", "dataset": f"{HERE}:four_times", "client-split": "50/0/50"}
    fedkd_flwr.run({**own, **changes}, output_dir=tmp_path / "run")
    lines = [line for line in logged() if "are copies of" in line]
    assert len(lines) == len(sentences)
    assert all(sentence in line for sentence, line in zip(sentences, lines, strict=True))


@pytest.mark.parametrize("name", ["csv:mine.csv", "table:mine.Parquet"])
def test_the_name_of_a_table_is_no_module_and_the_error_says_what_to_type(name):
    with pytest.raises(ConfigError, match=r"folder:PATH \(a folder, CSV or Parquet file\)"):
        read_config({"dataset": name})
