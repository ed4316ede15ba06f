"""``clients:PATH``: a client for each folder or file, of images, tables or arrays."""

import json
import pickle
import zipfile

import numpy as np
import pytest
from helpers import assert_refused, write_image_folder, write_parquet

import fedkd_flwr
from fedkd_flwr.data import pfllib
from fedkd_flwr.data.clients import client_indices, client_parts, load_client, public_pool
from fedkd_flwr.data.pfllib import client_files
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


# ---- Folders of PFLlib and HtFLlib ---------------------------------------------------


SIZES = {"train": (12, 20, 16), "test": (4, 6, 5)}
"""Samples of each client."""


def write_folder(root, changed=()):
    """Write three clients; each pixel of a sample has one number, which no other sample has."""
    generator, value = np.random.default_rng(0), 0
    for part, sizes in SIZES.items():
        (root / part).mkdir(parents=True)
        # Of two digits, so that files in the order of their names would be mixed up.
        for number, size in zip((0, 2, 10), sizes, strict=True):
            numbers = np.arange(value, value + size, dtype=np.float32) / 100
            value += size
            images = np.broadcast_to(numbers[:, None, None, None], (size, 1, 4, 4))
            content = {"x": images.copy(), "y": generator.permutation(np.arange(size) % 3)}
            np.savez_compressed(root / part / f"{number}.npz", data={**content, **dict(changed)})
    return f"pfllib:{root}"


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "MNIST")


def plan_of(folder, num_clients=3, **settings):
    settings = {"client_split": "75/0/25", **settings}
    return DataPlan(DataSettings(dataset=folder, **settings), num_clients)


def values_of(samples):
    return sorted(round(value * 100) for value in samples[:, 0, 0, 0].tolist())


def test_each_client_has_the_samples_of_its_files(folder):
    plan = plan_of(folder, public_dataset="none")
    assert plan.settings.partition == "by-file"
    starts = np.cumsum([0, *SIZES["train"], *SIZES["test"]]).tolist()
    for n, (train, test) in enumerate(zip(SIZES["train"], SIZES["test"], strict=True)):
        data = load_client(plan, n)
        assert values_of(data.train_images) == list(range(starts[n], starts[n] + train))
        assert values_of(data.test_images) == list(range(starts[3 + n], starts[3 + n] + test))
        assert not len(data.validation_labels)
        assert (data.shape, data.classes) == ((1, 4, 4), 3)


def test_the_public_set_leaves_test_files_as_they_are(folder):
    plan = plan_of(folder, held_out_size=30)
    public = values_of(public_pool(plan))
    assert len(public) == 30 and max(public) < 48
    assert [len(load_client(plan, n).test_labels) for n in range(3)] == [4, 6, 5]
    assert sum(map(len, client_indices(plan))) == 63 - 30


def test_fewer_clients_are_the_first_ones(folder):
    plan = plan_of(folder, 2, public_dataset="none")
    assert list(map(len, client_indices(plan))) == [16, 26]


def test_zero_clients_are_as_many_as_files(folder, small, tmp_path):
    changes = {"dataset": folder, "strategy": "local", "num-clients": 0, "max-samples": 0}
    changes |= {"public-dataset": "none", "models": "mlp", "client-split": "12/0/88"}
    run = fedkd_flwr.run({**small, **changes}, output_dir=tmp_path / "run")
    assert (run.config["num-clients"], run.config["partition"]) == (3, "by-file")


def test_lists_of_numbers_are_read_like_arrays(tmp_path):
    root = tmp_path / "lists"
    for part in ("train", "test"):
        (root / part).mkdir(parents=True)
        rows, labels = [np.zeros((1, 2), np.float32)] * 3, [0, np.int64(1), 2]
        np.savez(root / part / "0.npz", data={"x": rows, "y": labels})
    found, _ = client_files(f"pfllib:{root}")
    assert found.samples.shape == (6, 1, 2)
    assert found.labels.tolist() == [0, 1, 2] * 2


class Call:
    """Runs a function when it is unpickled without restrictions."""

    def __init__(self, function, *given):
        self.given = function, given

    def __reduce__(self):
        return self.given


CALLED = []


@pytest.mark.parametrize(
    "value",
    [
        Call(CALLED.append, 1),
        Call(eval, "CALLED.append(1)"),
        Call(np.load, "no.npy"),
        Call(np.fromfile, "no.npy"),
    ],
)
def test_nothing_in_a_file_is_called(value, tmp_path):
    folder = write_folder(tmp_path / "hostile", {"x": value})
    with pytest.raises(DataError, match="is refused, as it could run code"):
        client_files(folder)
    assert not CALLED


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"x": np.array(["a"] * 12)}, "holds no numbers"),
        ({"x": np.array([{}, {}], dtype=object)}, "expected 1"),
        ({"x": np.zeros((11, 1, 4, 4))}, r"x has shape \(11, 1, 4, 4\) and y \(12,\)"),
        ({"y": np.zeros((12, 2))}, r"y \(12, 2\)"),
        ({"x": [[1, 2], [3]]}, "inhomogeneous"),
    ],
)
def test_other_content_is_refused_in_one_line(changed, sentence, tmp_path):
    folder = write_folder(tmp_path / "other", changed)
    with pytest.raises(DataError, match=sentence) as refused:
        client_files(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"cut", pickle.dumps({"x": 1})])
def test_damaged_files_are_refused_in_one_line(content, tmp_path):
    folder = write_folder(tmp_path / "damaged")
    with zipfile.ZipFile(tmp_path / "damaged" / "train" / "0.npz", "w") as file:
        file.writestr("data.npy", content)
    with pytest.raises(DataError, match="is not a file of PFLlib") as refused:
        client_files(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num-clients": 4}, "has 3 clients, too few for 4; set num-clients to at most 3, or 0"),
        (
            {"dataset": "digits", "partition": "by-file"},
            "needs dataset = clients:PATH or pfllib:PATH",
        ),
        ({"dataset": "pfllib:nowhere"}, "0 files train/N.npz and 0 files test/N.npz"),
        ({"dataset": "pfllib:"}, "pfllib:PATH"),
        ({"held-out-size": 48}, "cannot hold out 48 of 48 samples"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(changes, sentence, folder, small, tmp_path):
    base = {**small, "strategy": "local", "models": "mlp", "dataset": folder, "num-clients": 3}
    base |= {"max-samples": 0, "held-out-size": 4}
    assert_refused(sentence, {**base, **changes}, tmp_path / "run")


def test_a_file_that_unpacks_to_much_more_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pfllib, "LARGEST", 1000)
    folder = write_folder(tmp_path / "zeros", {"more": np.zeros(10**6)})
    with pytest.raises(DataError, match="it unpacks to 8 MiB, too many for its size"):
        client_files(folder)
