"""``clients:PATH``: a client for each folder or file, of images, tables or arrays."""

import json

import numpy as np
import pytest
from helpers import write_image_folder, write_parquet

import fedkd_flwr
from fedkd_flwr.data.clients import client_parts, load_client
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.data.settings import DataPlan, DataSettings
from fedkd_flwr.data.sources import load_images

SITES = {"north": 0, "south": 100, "east": 200}
"""The brightness of each site's first image; the others are brighter by their number."""


def images_of(site, count=20):
    brightness = np.arange(count, dtype=np.uint8) + SITES[site]
    return np.broadcast_to(brightness[:, None, None], (count, 8, 8))


def animals(count):
    return np.array(["cat", "dog"])[np.arange(count) % 2]


def write_photos(folder):
    for site in SITES:
        write_image_folder(folder / site, images_of(site), animals(20))


def write_tables(folder):
    for site in SITES:
        write_parquet(folder / f"{site}.parquet", images_of(site), np.arange(20) % 2)


def write_tables_in_folders(folder):
    for site in SITES:
        write_parquet(folder / site / "a.parquet", images_of(site)[:12], np.arange(12) % 2)
        write_parquet(folder / site / "b.parquet", images_of(site)[12:], np.arange(8) % 2)


def write_arrays(folder):
    for site in SITES:
        (folder / site).mkdir(parents=True)
        np.savez(folder / site / "own.npz", X=images_of(site)[:, None], y=np.arange(20) % 2)


def test_a_table_of_each_client_has_classes_of_all(own, tmp_path):
    """The words of a class column are numbered over all files, and a test file is for testing."""
    generator = np.random.default_rng(0)
    for name, words in (("north", "yn"), ("south/train", "y"), ("south/test", "yn")):
        rows = [f"{x:.3f},{y:.3f},{words[n % len(words)]}"
                for n, (x, y) in enumerate(generator.normal(size=(40, 2)))]  # fmt: skip
        file = tmp_path / f"{name}.csv" if "/" in name else tmp_path / name / "own.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(["x,y,class", *rows]))
    found = load_images(f"clients:{tmp_path}")
    assert np.bincount(found.owners.clients).tolist() == [40, 80]
    assert (np.bincount(found.labels).tolist(), found.owners.is_test.sum()) == ([40, 80], 40)
    assert "2 classes" in found.said and found.said.endswith("2 clients: north 40, south 80")
    changes = {"dataset": f"clients:{tmp_path}", "held-out-size": 20, "public-size": 20}
    run = fedkd_flwr.run({**own, **changes}, output_dir=tmp_path / "run")
    assert list(run.rounds["failures"]) == [0]


@pytest.mark.parametrize(
    "write", [write_photos, write_tables, write_tables_in_folders, write_arrays]
)
def test_each_folder_or_file_is_a_client(write, own, tmp_path):
    """Read as classes, the folders would make site against site of cat against dog."""
    write(tmp_path / "photos")
    unset = {key: value for key, value in own.items() if key not in ("num-clients", "partition")}
    settings = {**unset, "dataset": f"clients:{tmp_path / 'photos'}", "held-out-size": 12}
    run = fedkd_flwr.run({**settings, "public-size": 12}, output_dir=tmp_path / "run")
    assert (run.config["num-clients"], run.config["partition"]) == (3, "by-file")
    assert list(run.rounds["failures"]) == [0]
    recorded = json.loads((run.path / "split.json").read_text())
    assert [client["values"][0].split(".")[0] for client in recorded] == sorted(SITES)
    plan = DataPlan(DataSettings(dataset=settings["dataset"], public_dataset="none"), 3)
    for number, site in enumerate(sorted(SITES)):
        data = load_client(plan, number)
        everything = np.sort(np.concatenate(data.positions))
        brightness = data.samples.images[everything].flatten(1)[:, 0].sort().values.tolist()
        assert brightness == [SITES[site] + n for n in range(20)]
        assert data.classes == 2


def test_a_client_may_have_its_own_test_folder(tmp_path):
    write_image_folder(tmp_path / "north/Training", images_of("north"), animals(20))
    write_image_folder(tmp_path / "north/Testing", images_of("south", 6), animals(6))
    write_image_folder(tmp_path / "south", images_of("east"), animals(20))
    settings = DataSettings(dataset=f"clients:{tmp_path}", public_dataset="none")
    plan = DataPlan(settings, 2)
    assert load_client(plan, 0).test_images.shape[0] == 6
    assert len(client_parts(plan, 1)[2]) == 4  # as client-split says


def test_classes_are_numbered_alike_at_all_clients(tmp_path):
    """A client without cats shifts no number."""
    write_photos(tmp_path)
    for file in (tmp_path / "east/cat").iterdir():
        file.unlink()
    (tmp_path / "east/cat").rmdir()
    found = load_images(f"clients:{tmp_path}")
    assert found.labels[found.owners.clients == 0].tolist() == [1] * 10
    assert "2 classes: cat 20, dog 30; 3 clients: east 10, north 20, south 20" in found.said


def write_parts(folder):
    for part in ("train", "test"):
        write_image_folder(folder / part, images_of("north"), animals(20))


def write_mixture(folder):
    write_image_folder(folder / "north", images_of("north"), animals(20))
    write_parquet(folder / "south/own.parquet", images_of("south"), np.arange(20) % 2)


def write_unsorted(folder):
    write_photos(folder)
    for file in sorted((folder / "east").rglob("*.png")):
        file.rename(folder / "east" / file.name)


def write_three_arrays(folder):
    folder.mkdir()
    np.savez(folder / "north.npz", a=np.zeros(3), b=np.zeros(3), c=np.zeros(3))


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (write_parts, "has the folders test, train, which are parts .* set dataset to folder:"),
        (write_mixture, r"several kinds \(north: images; south: .parquet\)"),
        (write_unsorted, "no sample is found of the client 'east': sort its images into a folder"),
        (write_three_arrays, "has the arrays a, b, c: it needs samples as x or .* labels as y or"),
        (lambda folder: folder.mkdir(), "needs a folder for each client, or a file"),
        (lambda folder: None, "there is no folder"),
    ],
)
def test_other_folders_are_refused_in_one_line(write, sentence, tmp_path):
    write(tmp_path / "photos")
    with pytest.raises(DataError, match=sentence) as refused:
        load_images(f"clients:{tmp_path / 'photos'}")
    assert "\n" not in str(refused.value)
