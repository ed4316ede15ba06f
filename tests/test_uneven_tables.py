"""Tables and folders whose parts differ, or in which images are missing."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from helpers import png, write_image_folder

from fedkd_flwr.data.by_column import client_values
from fedkd_flwr.data.registry import DataError, DataFormat
from fedkd_flwr.data.settings import DataSettings
from fedkd_flwr.data.sources import load_images, load_labels

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
    assert client_values(settings).tolist() == ["a", "b", "a"] * 2


def test_clients_are_named_by_text_or_by_numbers_in_all_parts(tmp_path):
    folder = tmp_path / "org" / "mixed"
    write(folder / "train-0.parquet", structs(), writer=pa.array(["a", "b", "a"]))
    write(folder / "train-1.parquet", structs(), writer=pa.array([0, 1, 0]))
    settings = DataSettings(dataset="hf:org/mixed", client_column="writer", data_root=str(tmp_path))
    with pytest.raises(DataError, match="holds text in some files and whole numbers in others"):
        client_values(settings)


def test_a_folder_named_like_an_image_is_none(tmp_path):
    folder = write_image_folder(tmp_path / "pets", np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1])
    (folder / "0" / "more.png").mkdir()
    assert load_labels(f"folder:{folder}", data_format=FORMAT).tolist() == [0, 0, 1, 1]


def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path):
    folder = write_image_folder(tmp_path / "pets", np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1])
    (folder / "0" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(DataError, match=r"gone\.png' cannot be read: No such file or directory$"):
        load_labels(f"folder:{folder}", data_format=FORMAT)
