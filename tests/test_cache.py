"""Decoded data sets on disk: identical content, decoded once, bounded, no crash."""

import multiprocessing
import os
import time

import datasets
import numpy as np
import pytest
import torch
from helpers import image_rows, write_image_folder, write_parquet

from fedkd_flwr.data import cache, sources, storage
from fedkd_flwr.data.sources import count_classes, load_images, load_labels, load_node_data

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
LABELS = np.arange(12) % 10

ARRAYS = {"images": torch.arange(4000, dtype=torch.uint8), "labels": torch.arange(40)}

DAMAGES = {
    "cut off": lambda content: content[:-100],
    "empty": lambda content: b"",
    "another file": lambda content: b"no tensors" * 100,
    "one bit": lambda content: content[:-900] + bytes([content[-900] ^ 1]) + content[-899:],
    "zeros": lambda content: content[:-4096] + bytes(4096),
}


def forget():
    """Be a process that has loaded nothing yet."""
    for known in (
        sources._load_images,
        sources._load_labels,
        count_classes,
        sources._path_in_cache,
    ):
        known.cache_clear()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The cache's folder, and a process that knows nothing else."""
    monkeypatch.setenv("FEDKD_CACHE", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache/decoded"
    forget()


@pytest.fixture
def root(tmp_path):
    """A data root with twelve images."""
    write_parquet(tmp_path / "root/uoft-cs/cifar10/train.parquet", IMAGES, LABELS)
    return str(tmp_path / "root")


@pytest.fixture
def decoded(monkeypatch):
    """How many images each call of the decoder was given."""
    calls, decode = [], sources.decode_images

    def counted(encoded, *further):
        calls.append(len(encoded))
        return decode(encoded, *further)

    monkeypatch.setattr(sources, "decode_images", counted)
    return calls


def assert_loaded(root=""):
    forget()
    pool = load_images("cifar10", root)
    np.testing.assert_array_equal(pool.images.permute(0, 2, 3, 1).numpy(), IMAGES)
    np.testing.assert_array_equal(pool.labels.numpy(), LABELS)
    assert pool.images.dtype == torch.uint8
    assert pool.labels.dtype == torch.int64


def test_the_second_process_decodes_nothing_and_parses_no_parquet(
    folder, root, decoded, monkeypatch
):
    assert_loaded(root)

    def parse(*_):
        raise AssertionError("a Parquet file was parsed")

    monkeypatch.setattr("fedkd_flwr.data.tables.read_parquet", parse)
    assert_loaded(root)
    assert decoded == [12]
    with pytest.raises(ValueError, match="read-only"):
        load_labels("cifar10", root)[0] = 5


def test_only_the_owner_can_read_what_is_kept(folder, root):
    assert_loaded(root)
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o077 == folder.stat().st_mode & 0o077 == 0


def test_changed_content_is_decoded_again(folder, root, decoded, tmp_path):
    """Even where name and time of the file are the same."""
    path = tmp_path / "root/uoft-cs/cifar10/train.parquet"
    assert_loaded(root)
    before, content = path.stat(), path.read_bytes()
    write_parquet(path, IMAGES, LABELS[::-1].copy())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    forget()
    assert load_labels("cifar10", root).tolist() == LABELS[::-1].tolist()
    path.write_bytes(content)
    assert_loaded(root)
    assert decoded == [12]


@pytest.mark.parametrize("kind", ["folder", "table"])
def test_a_nodes_own_images_are_decoded_once(folder, decoded, tmp_path, kind):
    """By content: neither where they lie nor when they were written says what they are."""
    own = tmp_path / ("mine" if kind == "folder" else "mine.parquet")
    write = write_image_folder if kind == "folder" else write_parquet

    def assert_loaded_as(images, shape=(3, 32, 32)):
        pool = load_node_data(own, shape, 10)
        assert pool.images.shape[1:] == shape
        if images is not None:
            by_class = np.argsort(LABELS, kind="stable") if kind == "folder" else slice(None)
            np.testing.assert_array_equal(pool.images.permute(0, 2, 3, 1), images[by_class])
            np.testing.assert_array_equal(pool.labels, LABELS[by_class])

    write(own, IMAGES, LABELS)
    assert_loaded_as(IMAGES)
    assert_loaded_as(IMAGES)
    assert decoded == [12]
    assert_loaded_as(None, shape=(1, 16, 16))
    assert decoded == [12, 12]
    changed = 255 - IMAGES
    write(own, changed, LABELS)
    assert_loaded_as(changed)
    assert decoded == [12, 12, 12]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_rewritten(folder, root, decoded, damage):
    assert_loaded(root)
    (file,) = folder.iterdir()
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    assert_loaded(root)
    assert_loaded(root)
    assert decoded == [12, 12]


def test_the_cache_can_be_turned_off(folder, root, decoded, monkeypatch):
    monkeypatch.setenv("FEDKD_CACHE", "off")
    assert_loaded(root)
    assert_loaded(root)
    assert decoded == [12, 12]
    assert not folder.exists()


def test_an_unwritable_cache_only_logs_a_warning(folder, root, logged):
    folder.parent.write_text("no folder")
    assert_loaded(root)
    (said,) = logged()
    assert said.startswith("decoded images cannot be cached (")


def test_sets_of_the_hub_are_kept_by_their_fingerprint(folder, decoded, monkeypatch):
    def part(positions):
        columns = {"img": image_rows(IMAGES[positions]), "label": LABELS[positions]}
        features = {"img": datasets.Image(), "label": datasets.Value("int64")}
        return datasets.Dataset.from_dict(columns, features=datasets.Features(features))

    def load_dataset(_):
        return datasets.DatasetDict({"test": part(slice(8, 12)), "train": part(slice(0, 8))})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for _ in range(2):
        storage.hub_parts.cache_clear()
        assert_loaded()
    assert decoded == [12]
    first = storage.fingerprint("uoft-cs/cifar10")
    monkeypatch.setattr(datasets, "load_dataset", lambda _: {"train": part(slice(0, 8))})
    storage.hub_parts.cache_clear()
    assert storage.fingerprint("uoft-cs/cifar10") != first
    storage.hub_parts.cache_clear()


def test_the_least_recently_used_files_are_removed(folder):
    paths = [folder / f"{name}.safetensors" for name in "abc"]
    for age, path in enumerate(paths):
        cache.keep_arrays(path, ARRAYS)
        os.utime(path, (1000 - age, 1000 - age))
    assert cache.read_array(paths[2], "labels") is not None  # used now
    size = paths[0].stat().st_size
    cache.make_room(folder, 2 * size)
    assert [path.exists() for path in paths] == [True, False, True]
    cache.make_room(folder, size - 1)
    assert list(folder.iterdir()) == []


def work_on(path, removes, found):
    """Write and remove the same file again and again, or write and read it."""
    ends_at = time.monotonic() + 0.8
    while time.monotonic() < ends_at:
        cache.keep_arrays(path, ARRAYS)
        if removes:
            cache.make_room(path.parent, 0)
            continue
        for _ in range(20):
            kept = cache.read_array(path, "images")
            assert kept is None or torch.equal(kept, ARRAYS["images"])
            with found:
                found.value += kept is not None


def test_processes_write_read_and_remove_at_the_same_time(folder):
    context = multiprocessing.get_context("fork")
    found = context.Value("i", 0)
    workers = [
        context.Process(target=work_on, args=(folder / "a.safetensors", removes, found))
        for removes in (True, False, False)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert found.value > 0
    assert list(folder.glob(".*")) == []  # nothing half-written is left
