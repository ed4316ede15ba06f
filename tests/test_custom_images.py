"""Custom images from the hub, folders and Arrow files; private, public and on a node."""

import logging

import datasets
import numpy as np
import pytest
from helpers import assert_refused, client_of, image_rows, write_image_folder, write_parquet
from PIL import Image

import fedkd_flwr
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.data.checks import check_data
from fedkd_flwr.data.registry import DataError, DataFormat
from fedkd_flwr.data.sources import load_images, load_labels, load_node_data
from fedkd_flwr.models.build import build_fitting

PIXELS = np.random.default_rng(0).integers(0, 256, (120, 12, 10, 3), dtype=np.uint8)
LABELS = np.arange(120) % 3
HUB_SET = "hf:somebody/Some_set.v2"


def as_dataset(pixels, labels, image="photo", label="kind"):
    features = {image: datasets.Image(), label: datasets.ClassLabel(num_classes=3)}
    rows = {image: image_rows(pixels), label: labels}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def write_hub_set(folder, pixels=PIXELS, labels=LABELS, image="photo", label="kind"):
    """Write a data root; return it as a run config takes it."""
    path = folder / HUB_SET.removeprefix("hf:") / "train.parquet"
    write_parquet(path, pixels, labels, image, label)
    return str(folder)


def write_partitions(folder, count=12):
    """Write what ``flwr-datasets create`` writes, which needs the hub itself."""
    for n in range(count):
        as_dataset(PIXELS[n::count], LABELS[n::count]).save_to_disk(folder / f"partition_{n}")
    return folder


def assert_all_there(found):
    np.testing.assert_array_equal(found.images.permute(0, 2, 3, 1).numpy(), PIXELS)
    np.testing.assert_array_equal(found.labels.numpy(), LABELS)
    assert found.classes == 3


def test_a_set_of_the_hub_from_a_data_root(own, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDKD_CACHE", str(tmp_path / "cache"))
    root = write_hub_set(tmp_path / "root")
    assert_all_there(load_images(HUB_SET, root))
    (kept,) = (tmp_path / "cache/decoded").iterdir()
    assert kept.name.startswith("hf-somebody-Some_set.v2-")
    settings = {**own, "dataset": HUB_SET, "data-root": root}
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    assert list(run.rounds["failures"]) == [0]
    assert client_of(settings).data.shape == (3, 12, 10)
    smaller = {**settings, "image-shape": "1,8,8", "num-classes": 4}
    data = client_of({**smaller}).data
    assert (data.shape, data.classes) == ((1, 8, 8), 4)


def test_a_set_of_the_hub_without_an_owner(tmp_path):
    """Its name has the form of a function's."""
    write_parquet(tmp_path / "pets/train.parquet", PIXELS, LABELS)
    assert_all_there(load_images("hf:pets", str(tmp_path)))
    np.testing.assert_array_equal(load_labels("hf:pets", str(tmp_path)), LABELS)


def test_columns_are_found_or_named(tmp_path):
    path = tmp_path / HUB_SET.removeprefix("hf:") / "train.parquet"
    path.parent.mkdir(parents=True)
    wide = as_dataset(PIXELS, LABELS).add_column("age", np.arange(120))
    wide = wide.add_column("thumb", image_rows(PIXELS[:, :8, :8]))
    wide.to_parquet(path)
    root = str(tmp_path)
    columns = "photo, kind, age, thumb"
    with pytest.raises(DataError, match=f"has the columns {columns}: set image-column"):
        load_labels(HUB_SET, root)
    with pytest.raises(DataError, match=f"has the columns {columns}: set label-column"):
        load_labels(HUB_SET, root, DataFormat("thumb"))
    with pytest.raises(DataError, match="set label-column"):
        load_labels(HUB_SET, root, DataFormat("thumb", "no such column"))
    with pytest.raises(DataError, match="set label-column"):  # although only one fits
        load_images(f"folder:{path}", "", DataFormat("thumb", "kinds"))
    found = load_images(HUB_SET, root, DataFormat("thumb", "kind"))
    assert found.images.shape == (120, 3, 8, 8)
    np.testing.assert_array_equal(found.labels.numpy(), LABELS)
    unlabeled = load_images(HUB_SET, root, DataFormat("photo", labeled=False))
    assert_images = unlabeled.images.permute(0, 2, 3, 1).numpy()
    np.testing.assert_array_equal(assert_images, PIXELS)


def test_arrow_folders_whole_or_one_on_a_node(tmp_path):
    folder = write_partitions(tmp_path / "federated")
    found = load_images(f"folder:{folder}")
    expected = np.concatenate([PIXELS[n::12] for n in range(12)])
    np.testing.assert_array_equal(found.images.permute(0, 2, 3, 1).numpy(), expected)
    one = load_node_data(folder / "partition_3", (3, 12, 10), 3)
    np.testing.assert_array_equal(one.images.permute(0, 2, 3, 1).numpy(), PIXELS[3::12])
    np.testing.assert_array_equal(one.labels.numpy(), LABELS[3::12])
    (folder / "partition_3/state.json").write_text("{}")
    with pytest.raises(DataError, match="partition_3' cannot be read as an Arrow folder"):
        load_node_data(folder / "partition_3", (3, 12, 10), 3)


def test_public_images_need_neither_labels_nor_the_private_shape(own, logged, tmp_path):
    tmp_path = tmp_path / "photos"
    tmp_path.mkdir()
    for n, pixels in enumerate(PIXELS[:30]):
        Image.fromarray(pixels[: 5 + n % 3]).save(tmp_path / f"{n:02d}.png")
    settings = {**own, "public-dataset": f"folder:{tmp_path}"}
    check_data(read_config(settings).run.data_plan, 20)
    said = f"Read public {tmp_path}: 30 images (1 x 28 x 28); resized: 30"
    assert logged(logging.INFO)[-1] == said
    assert client_of(settings).data.public_images.shape == (30, 1, 28, 28)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"dataset": "folder:NOWHERE"}, "there is no folder '.*NOWHERE'"),
        ({"dataset": "folder:EMPTY"}, "has no folders; it needs one for each class"),
        ({"dataset": "hf:somebody/nothing", "data-root": "EMPTY"}, "no Parquet file of somebody/n"),
        ({"dataset": "hf:../../etc"}, r"is not one of .* own as hf:ORG/NAME"),
        ({"dataset": "folder:"}, "is not one of"),
        ({"dataset": "folder:PHOTOS", "num-classes": 2}, "3 folders; it needs|classes 0 to 2"),
        ({"dataset": "folder:PHOTOS", "image-shape": "2,8,8"}, r"cannot have the shape \(2, 8"),
    ],
)
def test_missing_data_are_refused_in_one_line(changes, sentence, own, tmp_path):
    (tmp_path / "empty").mkdir()
    write_image_folder(tmp_path / "photos", PIXELS[:9], LABELS[:9])
    names = {"EMPTY": tmp_path / "empty", "PHOTOS": tmp_path / "photos"}
    for word, path in names.items():
        changes = {
            key: value.replace(word, str(path)) if isinstance(value, str) else value
            for key, value in changes.items()
        }
    assert_refused(sentence, {**own, **changes}, tmp_path / "run")


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([0] * 120, "has labels of one class; a model needs at least two"),
        ([*range(10)] * 11 + [10**9] * 10, "up to 1000000000, and at most 100000 classes"),
    ],
)
def test_labels_that_no_model_can_learn_are_refused(labels, sentence, own, tmp_path):
    images = np.zeros((120, 8, 8), dtype=np.uint8)
    table = write_parquet(tmp_path / "table.parquet", images, labels)
    for partition in ("iid", "k-classes", "dirichlet"):
        changes = {"dataset": f"folder:{table}", "partition": partition, "models": "mlp"}
        with pytest.raises((ConfigError, DataError), match=sentence):
            fedkd_flwr.run({**own, **changes}, output_dir=tmp_path / "run")


def test_the_reason_why_a_model_cannot_be_built_is_kept():
    with pytest.raises(ValueError, match="mlp cannot be built: a model needs at least 2 classes"):
        build_fitting("mlp", (1, 8, 8), 1)
    with pytest.raises(ValueError, match=r"takes no samples .*needs images of at least"):
        build_fitting("alexnet", (1, 4, 4), 2)
