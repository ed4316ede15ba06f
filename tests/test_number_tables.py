"""Tables of numbers: which columns are read, which is the class, and what is asked."""

import logging

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from helpers import image_rows
from sklearn.datasets import load_wine

import fedkd_flwr
from fedkd_flwr.data.clients import client_indices, load_client
from fedkd_flwr.data.folders import class_names
from fedkd_flwr.data.registry import DataError, DataFormat
from fedkd_flwr.data.settings import DataPlan, DataSettings
from fedkd_flwr.data.sources import load_images, load_node_data

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
