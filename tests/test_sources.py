"""Data sets: the pool's order, decoding, shapes, own data, two names of one, what is refused."""

import logging

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import sklearn.datasets
import torch
from helpers import image_rows, png, write_image_folder, write_parquet
from sklearn.datasets import load_wine

import fedkd_flwr
from fedkd_flwr.data.clients import client_indices, load_client
from fedkd_flwr.data.decoding import convert_images, to_float
from fedkd_flwr.data.folders import class_names
from fedkd_flwr.data.natural_split import owners_of
from fedkd_flwr.data.registry import DataError, DataFormat
from fedkd_flwr.data.settings import DataPlan, DataSettings
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


def test_unreachable_hub_names_the_way_out(monkeypatch):
    def load_dataset(hub_id):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match=r"ylecun/mnist .* \(ConnectionError\); set data-root"):
        load_labels("mnist")


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([1, 10], "holds classes 1 to 10, allowed are 0 to 9"),
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


# ---- Tables of numbers ---------------------------------------------------------------


WORDS = np.array(["red", "rose", "white"])


@pytest.fixture
def wines(tmp_path):
    """Wines with an identifier and the cellar that has each bottle; the class is a word."""
    table = load_wine(as_frame=True)
    frame = table.data.iloc[:, :3].assign(kind=WORDS[table.target], cellar=["a", "b"] * 89)
    frame.insert(0, "id", np.arange(1000, 1178))
    frame.to_csv(tmp_path / "wines.csv", index=False)
    return tmp_path / "wines.csv"


FEATURES = ("alcohol", "ash", "malic_acid")
BY_CELLAR = {"label_column": "kind", "client_column": "cellar", "feature_columns": FEATURES}


def settings_of(path, **settings):
    return DataSettings(dataset=f"folder:{path}", **settings)


def read(path, **settings):
    found = settings_of(path, **settings)
    return load_images(found.dataset, data_format=found.data_format)


def test_columns_are_read_as_named(wines):
    found = read(wines, **BY_CELLAR)
    frame = pd.read_csv(wines)
    np.testing.assert_allclose(found.images, frame[list(FEATURES)], rtol=1e-6)
    np.testing.assert_array_equal(WORDS[found.labels], frame["kind"])
    assert found.said == (
        f"{wines}: 178 rows; 3 columns of numbers (alcohol, ash, malic_acid); 3 classes "
        "(red, rose, white) in 'kind'; left out: id"
    )
    assert class_names(str(wines), 3, "kind") == list(WORDS)
    numbered = wines.with_name("numbered.csv")
    frame.assign(kind=found.labels).to_csv(numbered, index=False)
    assert "; 3 classes in 'kind'" in read(numbered, **BY_CELLAR).said


def test_each_client_has_the_rows_of_its_sites(wines, tmp_path, caplog):
    changes = {"strategy": "local", "models": "mlp", "num-clients": 0, "public-dataset": "none"}
    changes |= {"feature-columns": ",".join(FEATURES), "num-server-rounds": 1}
    changes |= {"label-column": "kind", "client-column": "cellar", "dataset": f"folder:{wines}"}
    with caplog.at_level(logging.INFO, "flwr"):
        run = fedkd_flwr.run(changes, output_dir=tmp_path / "run")
    assert run.config["num-clients"] == 2
    assert f"Read {wines}: 178 rows" in caplog.text
    assert "left out: id; each column is standardized" in caplog.text
    shares = client_indices(DataPlan(settings_of(wines, **BY_CELLAR, public_dataset="none"), 2))
    assert shares[0].tolist() == list(range(0, 178, 2))


@pytest.mark.parametrize(
    ("settings", "question"),
    [
        ({}, "set label-column to the one that holds the labels"),
        ({"label_column": "kind"}, "column 'id' has another whole number in each row, .* set feat"),
        ({"label_column": "id", "feature_columns": ("age",)}, "has no column 'age'; it has id, "),
        ({"label_column": "alcohol"}, "'alcohol' holds double; classes are whole numbers or words"),
        ({"label_column": "id", "feature_columns": ("kind",)}, "'kind' holds string and no num"),
        ({"label_column": "kind", "configured_classes": 4}, "names 3 classes, and num-classes is"),
    ],
)
def test_what_could_be_meant_otherwise_is_asked(settings, question, wines):
    with pytest.raises(DataError, match=question) as asked:
        read(wines, **settings)
    assert "\n" not in str(asked.value)


@pytest.mark.parametrize("columns", [{}, {"label_column": "kind"}])
def test_an_identifier_beside_images_is_no_class(columns, tmp_path):
    rows = image_rows(np.zeros((80, 4, 4), np.uint8))
    table = pa.table({"id": np.arange(80), "kind": ["ant", "bee"] * 40, "image": rows})
    pa.parquet.write_table(table, tmp_path / "insects.parquet")
    if columns:
        assert read(tmp_path / "insects.parquet", **columns).labels.tolist() == [0, 1] * 40
        return
    with pytest.raises(DataError, match="has the columns id, kind, image: set label-column"):
        read(tmp_path / "insects.parquet")


ROWS = {"size": np.arange(40) % 7 + 0.5, "age": np.arange(40) % 9, "kind": ["ant", "bee"] * 20}


def written(path, **columns):
    """Write a table of 40 insects with other columns, as a user's file."""
    pd.DataFrame({**ROWS, **columns}).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    ("columns", "label", "question"),
    [
        (
            {"age": ["?", *range(39)]},
            "kind",
            r"'age' has numbers among text such as '\?': write nu",
        ),
        ({"age": ["1,5"] * 40, "kind": np.arange(40) % 2}, "", "'age' has .* '1,5'.* set label-co"),
        ({"age": ["?", *range(39)], "kind": np.arange(40) % 2}, "", "'age' has numbers among text"),
        (
            {"age": 1.7e9 + np.arange(40) % 9},
            "kind",
            "'age' has numbers near .* differ by less than",
        ),
        ({"kind": np.arange(40) % 2, "old": [True, False] * 20}, "", "set label-column to the one"),
        ({"kind": [f"P{n}" for n in range(40)]}, "", "'kind' has another word in most rows, .* s"),
    ],
)
def test_text_that_is_no_class_is_asked_about(columns, label, question, tmp_path):
    with pytest.raises(DataError, match=question):
        read(written(tmp_path / "insects.csv", **columns), label_column=label)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (",size,kind\n0,1.5,ant\n", "leaves a column without a name: name it, or leave it out"),
        ("size,size,kind\n1.5,2.5,ant\n", "names several columns 'size': rename all but one"),
        ("1.5,2\n2.5,1\n", "which names no columns; write their names in the first line"),
        ("size,kind\n1.5,b\xe4r\n", "column 'kind' is not in UTF-8"),
        ("gr\xf6\xdfe,kind\n1.5,ant\n", "cannot be read as a table: 'utf-8' codec"),
    ],
)
def test_a_table_that_cannot_be_meant_so_is_refused(text, told, tmp_path):
    (tmp_path / "insects.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=told) as refused:
        read(tmp_path / "insects.csv")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("order", [("north", "south"), ("south", "north")])
@pytest.mark.parametrize("ages", [np.arange(40) + 0.5, [None] * 40])
def test_clients_may_write_the_numbers_of_a_column_in_other_ways(order, ages, tmp_path):
    written(tmp_path / f"{order[0]}.csv")
    written(tmp_path / f"{order[1]}.csv", age=ages, mass=1.0)
    if order[0] == "south":
        with pytest.raises(DataError, match="has no column 'mass'; it has size, age, kind"):
            load_images(f"clients:{tmp_path}")
        return
    found = load_images(f"clients:{tmp_path}")
    assert found.columns == ("size", "age")
    assert "left out: mass" in found.said
    np.testing.assert_array_equal(found.images[:40, 1], ROWS["age"])
    np.testing.assert_array_equal(found.images[40:, 1], np.array(ages, dtype=np.float32))


def test_clients_with_lists_of_other_lengths_get_a_sentence(tmp_path):
    for name, length in (("north", 2), ("south", 3)):
        series = pa.array([[1.0] * length] * 4, pa.list_(pa.float32(), length))
        table = pa.table({"label": [0, 1, 0, 1], "series": series})
        pa.parquet.write_table(table, tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match="samples of several shapes"):
        load_images(f"clients:{tmp_path}")


def test_numbers_that_count_the_rows_of_each_client_are_asked_about(tmp_path):
    for name in ("north", "south"):
        written(tmp_path / f"{name}.csv", age=range(40))
    with pytest.raises(DataError, match="column 'age' has another whole number in each row"):
        load_images(f"clients:{tmp_path}")


def test_classes_that_differ_in_case_or_spaces_are_named(tmp_path, caplog):
    found = read(written(tmp_path / "insects.csv", kind=["ant", "Ant ", "bee", "bee"] * 10))
    assert found.classes == 3
    assert "equal but for case or spaces are several classes: 'Ant ', 'ant'" in caplog.text


def test_a_cell_may_hold_several_lines_in_a_file_of_any_size(tmp_path):
    notes = ['"seen\n' * (n % 50) for n in range(20000)]
    columns = {"kind": ["ant", "bee"] * 10000, "size": np.arange(20000) + 0.5, "note": notes}
    pd.DataFrame(columns).to_csv(tmp_path / "insects.csv", index=False)
    found = read(tmp_path / "insects.csv", label_column="kind")
    np.testing.assert_array_equal(found.images[:, 0], columns["size"])


def test_a_column_of_lists_is_a_sample(tmp_path):
    series = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    table = pa.table({"label": [0, 1, 0, 1], "series": series.tolist()})
    pa.parquet.write_table(table, tmp_path / "series.parquet")
    np.testing.assert_array_equal(read(tmp_path / "series.parquet").images, series)
    lists = pa.table({"label": [0, 1], "series": [[1.0], [1.0, 2.0]]})
    pa.parquet.write_table(lists, tmp_path / "ragged.parquet")
    with pytest.raises(DataError, match="'series' has lists of several lengths"):
        read(tmp_path / "ragged.parquet")


def test_empty_cells_are_missing_values_and_no_classes(tmp_path):
    (tmp_path / "birds.csv").write_text("species;bill;mass\nAdelie;39.1;\nGentoo;;5000\n;40.0;1\n")
    with pytest.raises(DataError, match="'species': 1 of 3 rows have no class; remove these rows"):
        read(tmp_path / "birds.csv")
    (tmp_path / "birds.csv").write_text("species;bill;mass\nAdelie;39.1;NA\nGentoo;;5000.5\n")
    found = read(tmp_path / "birds.csv")
    np.testing.assert_allclose(found.images, [[39.1, np.nan], [np.nan, 5000.5]], rtol=1e-6)


def test_parts_whose_classes_are_numbered_otherwise_are_joined_by_name(tmp_path):
    for part, names in enumerate((["cat", "dog"], ["dog", "cat"])):
        features = datasets.Features(
            {"size": datasets.Value("float32"), "label": datasets.ClassLabel(names=names)}
        )
        rows = {"size": [1.0, 2.0], "label": [names.index("cat"), names.index("dog")]}
        folder = str(tmp_path / "pets" / f"partition_{part}")
        datasets.Dataset.from_dict(rows, features=features).save_to_disk(folder)
    assert read(tmp_path / "pets").labels.tolist() == [0, 1, 0, 1]


def test_a_public_table_has_the_private_columns_whatever_their_order(wines, tmp_path):
    frame = pd.read_csv(wines)[["ash", "malic_acid", "id", "alcohol"]]
    frame.to_csv(tmp_path / "public.csv", index=False)
    names = {"dataset": f"folder:{wines}", "public_dataset": f"folder:{tmp_path / 'public.csv'}"}
    settings = DataSettings(**names, **BY_CELLAR)
    private, public = (
        load_images(name, data_format=data_format).images
        for name, data_format in (
            (settings.dataset, settings.data_format),
            (settings.public_dataset, settings.public_data_format),
        )
    )
    np.testing.assert_array_equal(private, public)


def test_a_table_of_a_data_root_is_read(wines, tmp_path):
    folder = tmp_path / "root/cellar/wines"
    folder.mkdir(parents=True)
    pd.read_csv(wines).drop(columns="id").to_parquet(folder / "train.parquet")
    data_format = DataFormat(label_column="kind")
    found = load_images("hf:cellar/wines", str(tmp_path / "root"), data_format)
    assert found.columns == ("alcohol", "malic_acid", "ash")
    assert found.classes == 3


def test_a_node_reads_the_columns_that_the_run_names(wines):
    format_of_run = DataFormat(label_column="kind", feature_columns=FEATURES)
    own = load_node_data(wines, (3,), 3, format_of_run)
    np.testing.assert_array_equal(own.images, read(wines, **BY_CELLAR).images)
    pd.read_csv(wines).drop(columns="id").to_csv(wines, index=False)
    with pytest.raises(DataError, match="needs feature-columns in the run config"):
        load_node_data(wines, (3,), 3, DataFormat(label_column="kind"))
    with pytest.raises(DataError, match=r"has samples \(3,\), the run's are \(4,\)"):
        load_node_data(wines, (4,), 3, format_of_run)
    settings = settings_of(wines, **BY_CELLAR, input_scaling="symmetric", public_dataset="none")
    assert load_client(DataPlan(settings, 2), 0, str(wines)).shape == (3,)
