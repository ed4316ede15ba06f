"""Data sets: the pool's order, decoding, shapes, own data, two names of one, what is refused."""

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import sklearn.datasets
import torch
from helpers import png, write_image_folder, write_parquet
from PIL import Image

from fedkd_flwr.data.decoding import convert_images, to_float
from fedkd_flwr.data.natural_split import owners_of
from fedkd_flwr.data.registry import DataError, DataFormat
from fedkd_flwr.data.settings import DataSettings
from fedkd_flwr.data.sources import bundled_digits, load_images, load_labels, load_node_data
from fedkd_flwr.data.storage import share_samples

TINY = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
TINY_LABELS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8])


def write_tiny(path, positions, **columns):
    """Write some of the tiny images in the hub's layout."""
    return write_parquet(path, TINY[positions], TINY_LABELS[positions], **columns)


LAYOUTS = {
    "flat": ["train.parquet", "train2.parquet", "test.parquet"],
    "numbered": [
        "data/train-00000-of-00002.parquet",
        "data/train-00001-of-00002.parquet",
        "data/test-00000-of-00001.parquet",
    ],
    "folders": ["plain/train/0000.parquet", "plain/train/0001.parquet", "plain/test/0000.parquet"],
}


def test_digits_are_complete_offline_and_fill_the_range():
    digits = load_images("digits")
    assert digits.images.shape == (1797, 1, 28, 28)
    assert digits.images.dtype == torch.uint8
    assert digits.labels.dtype == torch.int64
    assert torch.bincount(digits.labels).tolist() == [
        178, 182, 177, 183, 181, 182, 181, 179, 174, 180,
    ]  # fmt: skip
    assert digits.images.min() == 0
    assert digits.images.max() > 240
    np.testing.assert_array_equal(digits.labels.numpy(), load_labels("digits"))


def test_digits_are_those_of_scikit_learn():
    digits = sklearn.datasets.load_digits()
    images, labels = bundled_digits()
    brightness = np.round(digits.images * (255 / 16)).astype(np.uint8)
    np.testing.assert_array_equal(images[:, 0].numpy(), brightness)
    np.testing.assert_array_equal(labels, digits.target)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parquet_parts_are_pooled_train_first(tmp_path, layout):
    first, second, last = (tmp_path / "uoft-cs/cifar10" / name for name in LAYOUTS[layout])
    write_tiny(last, slice(8, 12))
    write_tiny(first, slice(0, 5))
    write_tiny(second, slice(5, 8))
    pool = load_images("cifar10", str(tmp_path))
    np.testing.assert_array_equal(pool.images.permute(0, 2, 3, 1).numpy(), TINY)
    np.testing.assert_array_equal(pool.labels.numpy(), TINY_LABELS)
    np.testing.assert_array_equal(load_labels("cifar10", str(tmp_path)), TINY_LABELS)
    assert pool.classes == 10


def test_labels_are_read_without_decoding(tmp_path):
    folder = tmp_path / "uoft-cs/cifar10"
    folder.mkdir(parents=True)
    broken = [{"bytes": b"no image", "path": None}]
    pyarrow.parquet.write_table(pa.table({"label": [7], "img": broken}), folder / "train.parquet")
    assert load_labels("cifar10", str(tmp_path)).tolist() == [7]
    with pytest.raises(DataError, match="image 0 is no readable image file"):
        load_images("cifar10", str(tmp_path))


def test_gray_sets_decode_color_files_to_one_channel(tmp_path):
    path = tmp_path / "ylecun/mnist/train.parquet"
    write_tiny(path, slice(0, 4), image="image")
    images = load_images("mnist", str(tmp_path)).images
    assert images.shape == (4, 1, 28, 28)  # resized as well: the files have 32x32 pixels


def test_files_of_any_mode_are_decoded(tmp_path):
    """Palettes, transparency and one-bit images, as people have them in folders."""
    (tmp_path / "0").mkdir()
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
        Image.new(mode, (28, 28), 1).save(tmp_path / "0" / f"{mode}.png")
    (tmp_path / "0" / "notes.txt").write_text("no image")
    for shape in ((1, 28, 28), (3, 28, 28)):
        assert load_node_data(tmp_path, shape, 1).images.shape == (6, *shape)


def test_unreachable_hub_names_the_way_out(monkeypatch):
    def load_dataset(hub_id):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match=r"ylecun/mnist .* \(ConnectionError\); set data-root"):
        load_labels("mnist")


def test_foreign_classes_are_refused(tmp_path):
    folder = tmp_path / "uoft-cs/cifar10"
    folder.mkdir(parents=True)
    pyarrow.parquet.write_table(pa.table({"label": [1, 10]}), folder / "train.parquet")
    with pytest.raises(DataError, match="holds classes 1 to 10, allowed are 0 to 9"):
        load_labels("cifar10", str(tmp_path))


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([1, None], "1 of 2 rows have no class"),
        (["cat", "dog"], "names 2 classes, and num-classes is 10"),
        ([0.5, 1.0], "holds double; classes are whole numbers or words"),
    ],
)
def test_what_is_no_class_is_refused(tmp_path, labels, sentence):
    folder = tmp_path / "uoft-cs/cifar10"
    folder.mkdir(parents=True)
    pyarrow.parquet.write_table(pa.table({"label": labels}), folder / "train.parquet")
    with pytest.raises(DataError, match=sentence):
        load_labels("cifar10", str(tmp_path))


def test_damaged_parquet_is_refused(tmp_path):
    path = tmp_path / "uoft-cs/cifar10/train.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match="cannot be read as a Parquet file"):
        load_labels("cifar10", str(tmp_path))


def test_to_float_maps_black_and_white_and_leaves_its_input():
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    assert to_float(images).flatten().tolist() == [-1.0, 1.0]
    assert images.flatten().tolist() == [0, 255]
    assert to_float(images).dtype == torch.float32


def test_convert_between_gray_and_color():
    gray = torch.full((2, 1, 4, 4), 90, dtype=torch.uint8)
    color = convert_images(gray, (3, 8, 8))
    assert color.shape == (2, 3, 8, 8)
    assert torch.equal(convert_images(color, (1, 4, 4)), gray)
    # Green is the brightest of the three primaries, blue the darkest.
    primaries = torch.eye(3, dtype=torch.uint8).mul(255).view(3, 3, 1, 1)
    red, green, blue = convert_images(primaries, (1, 1, 1)).flatten().tolist()
    assert (red, green, blue) == (76, 150, 29)


def own_folder(path, names):
    """Write a folder of classes, one image in each, all of the class's brightness."""
    images = [np.full((20, 30, 3), 10 * i, dtype=np.uint8) for i in range(len(names))]
    return write_image_folder(path, images, names)


def test_own_folder_by_name_needs_every_class(tmp_path):
    folder = own_folder(tmp_path, ["cat", "dog"])
    assert load_node_data(folder, (3, 32, 32), 2).labels.tolist() == [0, 1]
    with pytest.raises(DataError, match="holds 2 folders; it needs one for each of the 3"):
        load_node_data(folder, (3, 32, 32), 3)
    (folder / "ape").mkdir()  # an empty folder keeps the numbering of the others
    assert load_node_data(folder, (3, 32, 32), 3).labels.tolist() == [1, 2]


def test_own_data_must_exist_and_fit(tmp_path):
    with pytest.raises(DataError, match="there is no folder or Parquet file at"):
        load_node_data(tmp_path / "nowhere", (1, 28, 28), 10)
    with pytest.raises(DataError, match="has no folders"):
        load_node_data(tmp_path, (1, 28, 28), 10)
    with pytest.raises(DataError, match="holds classes 11 to 11, allowed are 0 to 9"):
        load_node_data(own_folder(tmp_path, ["11"]), (1, 28, 28), 10)


# ---- Tables and folders whose parts differ, or in which images are missing -----------


FILES = [png(np.full((8, 8), brightness, np.uint8)) for brightness in (0, 90, 255)]
FORMAT = DataFormat(shape=(1, 8, 8))


def write(path, images, labels=(0, 1, 0), **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"image": images, "label": pa.array(labels), **columns})
    pyarrow.parquet.write_table(table, path)
    return path


def structs(files=FILES, paths=(None, None, None)):
    rows = [{"bytes": file, "path": path} for file, path in zip(files, paths, strict=True)]
    return pa.array(rows, pa.struct({"bytes": pa.binary(), "path": pa.string()}))


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (pa.array(["a.png", "b.png", "c.png"]), "holds string; it should hold image files"),
        (pa.array([[0], [1], [2]]), "holds list<.*>; it should hold image files"),
        (pa.array([{"path": "a"}] * 3), "holds struct<path: string>; it should hold image files"),
        (pa.array([FILES[0], None, FILES[2]]), "1 of 3 rows have no image; remove these rows"),
        (structs([None, FILES[1], None], "abc"), "2 of 3 rows have no image"),
        (structs([None] * 3), "3 of 3 rows have no image"),
        (structs([None] * 3, "abc"), "names files and does not hold them"),
    ],
)
def test_a_column_without_images_is_refused_in_one_line(images, sentence, tmp_path):
    table = write(tmp_path / "table.parquet", images)
    data_format = DataFormat(shape=(1, 8, 8), image_column="image")
    with pytest.raises(DataError, match=sentence) as refused:
        load_images(f"folder:{table}", data_format=data_format)
    assert "\n" not in str(refused.value)


def test_parts_of_a_set_may_store_columns_in_different_types(tmp_path):
    folder = tmp_path / "org" / "mixed"
    words = pa.array(["a", "b", "a"])
    write(folder / "train-0.parquet", structs(), pa.array([0, 1, 0], pa.int32()), writer=words)
    write(folder / "train-1.parquet", pa.array(FILES), writer=words.dictionary_encode())
    found = load_images("hf:org/mixed", str(tmp_path), FORMAT)
    assert found.labels.tolist() == [0, 1, 0] * 2
    assert found.images[:, 0, 0, 0].tolist() == [0, 90, 255] * 2
    settings = DataSettings(dataset="hf:org/mixed", client_column="writer", data_root=str(tmp_path))
    assert owners_of(settings).of_samples.tolist() == ["a", "b", "a"] * 2


def test_clients_are_named_by_text_or_by_numbers_in_all_parts(tmp_path):
    folder = tmp_path / "org" / "mixed"
    write(folder / "train-0.parquet", structs(), writer=pa.array(["a", "b", "a"]))
    write(folder / "train-1.parquet", structs(), writer=pa.array([0, 1, 0]))
    settings = DataSettings(dataset="hf:org/mixed", client_column="writer", data_root=str(tmp_path))
    with pytest.raises(DataError, match="holds text in some files and whole numbers in others"):
        owners_of(settings)


def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path):
    folder = write_image_folder(tmp_path / "pets", np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1])
    (folder / "0" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(DataError, match=r"gone\.png' cannot be read: No such file or directory$"):
        load_labels(f"folder:{folder}", data_format=FORMAT)


# ---- Two names of one data set are recognized without reading a sample --------------------


@pytest.fixture
def root(tmp_path):
    """A data root with MNIST under two names, and two folders of classes in two parts."""
    (tmp_path / "ylecun/mnist").mkdir(parents=True)
    (tmp_path / "ylecun/mnist/train.parquet").touch()
    (tmp_path / "link").symlink_to(tmp_path / "ylecun/mnist")
    for part in ("train", "test", "unlabelled"):
        (tmp_path / "pets" / part / "cat").mkdir(parents=True)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("private", "public", "are_one"),
    [
        ("mnist", "hf:ylecun/mnist", True),
        ("hf:ylecun/mnist", "mnist", True),
        ("mnist", "hf:link", True),
        ("mnist", "folder:ROOT/ylecun/mnist/train.parquet", True),
        ("mnist", "folder:ROOT/link", True),
        ("mnist", "hf:ylecun/mnist2", False),
        ("mnist", "fashion-mnist", False),
        ("mnist", "hf:mnist", False),
        ("digits", "digits", True),
        ("digits", "mnist", False),
        ("folder:ROOT/pets", "folder:ROOT/link/../../pets", True),
        ("folder:ROOT/pets", "folder:ROOT/pets/train", True),
        ("folder:ROOT/pets/train", "folder:ROOT/pets", True),
        ("folder:ROOT/pets/train", "folder:ROOT/pets/test", False),
        # Of a folder with parts, nothing else is private.
        ("folder:ROOT/pets", "folder:ROOT/pets/unlabelled", False),
        ("a.module:Data.load", "a.module.Data:load", True),
        ("a.module:one", "a.module:other", False),
    ],
)
def test_in_a_data_root(private, public, are_one, root):
    private, public = (name.replace("ROOT", root) for name in (private, public))
    assert share_samples(private, public, root) == are_one


@pytest.mark.parametrize(
    ("private", "public", "are_one"),
    [
        ("cifar10", "hf:uoft-cs/cifar10", True),
        ("cifar10", "hf:cifar10", True),
        ("hf:Uoft-CS/cifar10", "cifar10", True),
        ("hf:somebody/cifar10", "cifar10", False),
        ("cifar10", "cifar100", False),
        ("digits", "cifar10", False),
    ],
)
def test_on_the_hub(private, public, are_one):
    assert share_samples(private, public) == are_one
