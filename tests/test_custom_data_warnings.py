"""Mistakes in custom data and models that are warned about, or refused before a client works."""

import json
import re

import numpy as np
import pytest
from helpers import write_image_folder
from torch import nn

import fedkd_flwr
from fedkd_flwr.config import ConfigError
from fedkd_flwr.custom_objects.importing import HELD
from fedkd_flwr.data import checks, sources
from fedkd_flwr.data.checks import warnings_about_data
from fedkd_flwr.data.settings import DataSettings
from fedkd_flwr.data.sources import count_classes
from fedkd_flwr.models.build import build_model, returns_probabilities

HERE = "test_custom_data_warnings"
CALLS = []


def table(rows=90):
    return np.random.default_rng(0).normal(size=(rows, 20)), np.arange(rows) % 3


def restless():
    CALLS.append(1)
    samples, labels = table()
    return samples + len(CALLS), labels


def from_one():
    samples, labels = table()
    return samples, labels + 1


def with_clients():
    return *table(), np.arange(90) % 3


def channels_last(scale=1):
    pixels = np.random.default_rng(0).integers(0, 256, (90, 8, 9, 3), dtype=np.uint8)
    return pixels / scale, np.arange(90) % 3


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
    for cache in (
        sources._load_images,
        sources._load_labels,
        count_classes,
        checks._is_repeatable,
    ):
        cache.cache_clear()
    yield
    HELD.clear()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("table", None),
        ("restless", "returns other data on a second call, and each process calls it"),
        ("from_one", "the labels of .* go from 1 to 3, .* from 0 to 3: number the classes from 0"),
        ("channels_last", r"samples \(90, 8, 9, 3\) of .* look like images from 0 to 255 with"),
        ("channels_last_in_whole_numbers", "with channels last, and are read as numbers"),
        ("with_clients", "returns the client of each sample, which partition = iid does not read"),
        ("channels_last_scaled", None),
        ("tiny_images", None),
    ],
)
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


def test_folders_named_from_one_are_warned_about(tmp_path):
    images = np.zeros((6, 8, 8), np.uint8)
    folder = write_image_folder(tmp_path / "pets", images, np.arange(6) % 2 + 1)
    (warning,) = warnings_about_data(DataSettings(dataset=f"folder:{folder}"))
    assert "go from 1 to 2" in warning


def test_a_network_that_returns_probabilities_is_warned_about(own, logged, tmp_path):
    changes = {"dataset": f"{HERE}:table", "strategy": "local"}
    models = f"mlp,{HERE}:softmax_net"
    fedkd_flwr.run({**own, **changes, "models": models}, output_dir=tmp_path / "run")
    (line,) = [line for line in logged() if HERE in line]
    assert line.startswith(f"{HERE}:softmax_net returns rows that sum to one")
    assert not returns_probabilities(build_model("mlp", (20,), 3), (20,))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"dataset": f"{HERE}:table", "models": "mlp,lenet"},
            r"local: model lenet takes no samples \(n, 20\); built-in models that do: mlp; or set",
        ),
        (
            {"dataset": f"{HERE}:tiny_images", "models": "alexnet"},
            r"model alexnet takes no samples \(n, 1, 4, 4\); built-in models that do: lenet, .*mlp",
        ),
        (
            {"dataset": f"{HERE}:table", "strategy": "fml", "fml.shared-model": "cnn"},
            r"fml: model cnn takes no samples \(n, 20\)",
        ),
    ],
)
def test_built_in_models_that_do_not_fit_are_refused(changes, sentence, own, tmp_path):
    with pytest.raises(ConfigError, match=sentence) as refused:
        fedkd_flwr.run({**own, "strategy": "local", **changes}, output_dir=tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_changed_data_are_reported_by_resume_and_compare(own, logged, tmp_path):
    changes = {"dataset": f"{HERE}:table", "models": "mlp", "strategy": "local"}
    runs = [
        fedkd_flwr.run({**own, **changes, **method}, output_dir=tmp_path / str(n))
        for n, method in enumerate([{}, {"strategy": "fedavg"}])
    ]
    assert set(runs[0].description["data"]) == {"dataset", "split"}
    digest = "is not the same in all of them"
    assert not [note for note in fedkd_flwr.compare(runs).notes if digest in note]
    file = runs[1].path / "config.json"
    description = json.loads(file.read_text())
    description["data"]["dataset"] = "0" * 64
    file.write_text(json.dumps(description))
    (note,) = [note for note in fedkd_flwr.compare(tmp_path).notes if digest in note]
    assert note.startswith("The dataset of these runs")
    fedkd_flwr.resume(runs[1].path, num_server_rounds=2, allow_code=HERE)
    assert "The dataset of this run has changed since the run was started." in logged()


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
    settings = {**own, "dataset": f"{HERE}:four_times", "client-split": "50/0/50", **changes}
    fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    lines = [line for line in logged() if "are copies of" in line]
    assert len(lines) == len(sentences)
    assert all(sentence in line for sentence, line in zip(sentences, lines, strict=True))
