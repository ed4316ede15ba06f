"""What a client holds: its own split, the public set, and what a run is refused for."""

import numpy as np
import pytest
import torch
from helpers import write_image_folder, write_parquet
from hypothesis import given, settings
from hypothesis import strategies as draw

from fedkd_flwr.config import read_config
from fedkd_flwr.data import scaling as scaling_module
from fedkd_flwr.data.checks import check_data
from fedkd_flwr.data.clients import (
    client_indices,
    load_client,
    public_pool,
)
from fedkd_flwr.data.custom_data import content_digest
from fedkd_flwr.data.decoding import to_float
from fedkd_flwr.data.public import public_subset, split_public
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.data.settings import DataPlan, DataSettings
from fedkd_flwr.data.sources import load_images, load_labels
from fedkd_flwr.data.splits import split_client


def plan_of(num_clients=8, seed=0, **settings):
    settings = {"partition": "iid", "client_split": "75/0/25", **settings}
    return DataPlan(DataSettings(**settings), num_clients, seed)


DIGITS = plan_of(num_clients=5)


@pytest.fixture
def color_root(tmp_path):
    """Return a data root with thirty color images as CIFAR-100."""
    images = np.random.default_rng(0).integers(0, 256, (30, 32, 32, 3), dtype=np.uint8)
    path = tmp_path / "uoft-cs/cifar100/train.parquet"
    write_parquet(path, images, range(30), label="fine_label")
    return str(tmp_path)


# ---- The split inside a client ---------------------------------------------------------


def test_split_has_the_exact_sizes_and_the_clients_distribution():
    labels = np.repeat([2, 7], [300, 100])
    train, validation, test = split_client(labels, "60/20/20", 0, 3)
    assert [len(train), len(validation), len(test)] == [240, 80, 80]
    assert np.bincount(labels[train])[[2, 7]].tolist() == [180, 60]
    assert np.bincount(labels[validation])[[2, 7]].tolist() == [60, 20]
    assert np.bincount(labels[test])[[2, 7]].tolist() == [60, 20]


@settings(max_examples=60, deadline=None)
@given(
    counts=draw.lists(draw.integers(0, 60), min_size=1, max_size=8).filter(lambda c: sum(c) >= 3),
    fractions=draw.sampled_from(["75/0/25", "60/20/20", "10|30|40/10/50", "1/1/98", "98/1/1"]),
    seed=draw.integers(0, 1000),
)
def test_split_is_disjoint_stratified_and_never_empty(counts, fractions, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    parts = split_client(labels, fractions, seed, 1)
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together) <= len(labels)
    wanted = [text != "0" for text in fractions.split("/")]
    assert [len(part) > 0 for part in parts] == wanted
    of_class = np.array(counts)
    for part in parts:
        # At either end a cut is within a sample of every class, and samples of classes that stand
        # level there are on one side or the other: at most half of the classes.
        allowed = 2 + len(counts) / 2 * of_class / len(labels)
        share = len(part) / len(labels)
        held = np.bincount(labels[part], minlength=len(counts))
        assert (abs(held - share * of_class) <= allowed).all()


def test_alternatives_are_drawn_per_client_and_the_rest_is_unused():
    labels = np.repeat(np.arange(5), 20)
    sizes = [
        [len(part) for part in split_client(labels, "10|30|40/10/50", 0, n)] for n in range(60)
    ]
    assert {train for train, _, _ in sizes} == {10, 30, 40}
    assert {(validation, test) for _, validation, test in sizes} == {(10, 50)}


@pytest.mark.parametrize(
    "fractions",
    ["", "75/25", "80/20/10", "40|90/10/10", "a/b/c", "0/50/50", "50/50/0", "50/-5/5", "5/5/5/5"],
)
def test_bad_fractions_name_the_form(fractions):
    with pytest.raises(DataError, match=r"not of the form train/validation/test .* 75/0/25"):
        split_client(np.zeros(100, dtype=np.int64), fractions, 0, 0)


def test_too_small_a_client_is_refused():
    with pytest.raises(DataError, match="client 4 has 2 samples, too few for the client-split"):
        split_client(np.zeros(2, dtype=np.int64), "60/20/20", 0, 4)


# ---- The public set --------------------------------------------------------------------


def test_held_out_part_and_private_part_are_the_whole():
    private, public = split_public(100, 30, 0)
    assert len(public) == 30
    assert sorted([*private, *public]) == list(range(100))
    assert not np.array_equal(public, split_public(100, 30, 1)[1])


def test_public_subset_is_a_function_of_seed_and_round():
    first = public_subset(500, 100, 7, 1)
    assert len(np.unique(first)) == 100
    assert first.max() < 500
    np.testing.assert_array_equal(first, public_subset(500, 100, 7, 1))
    assert not np.array_equal(first, public_subset(500, 100, 7, 2))
    assert not np.array_equal(first, public_subset(500, 100, 8, 1))
    np.testing.assert_array_equal(public_subset(9, 9, 0, 0), np.arange(9))
    with pytest.raises(DataError, match="public-size is 10, but the public set holds 9"):
        public_subset(9, 10, 0, 1)


def test_content_digest_tells_content_and_shape():
    images = load_images("digits").images[:5]
    assert content_digest(images) == content_digest(images.clone())
    changed = images.clone()
    changed[4, 0, 27, 27] += 1
    assert content_digest(changed) != content_digest(images)
    assert content_digest(images.view(5, 1, 14, 56)) != content_digest(images)
    assert len(content_digest(images)) == 64


def test_images_become_numbers_on_the_cpu_whatever_the_device(monkeypatch):
    """A GPU rounds otherwise: nodes with and without one would take each other for strangers."""
    converted_on = []

    def told(images):
        converted_on.append(images.device.type)
        return to_float(images)

    monkeypatch.setattr(scaling_module, "to_float", told)
    data = load_client(DataPlan(DIGITS.settings, 5, seed=0, device="meta"), 0)
    assert data.public_images.device.type == data.train_images.device.type == "meta"
    assert set(converted_on) == {"cpu"}


def test_another_set_is_the_public_pool(color_root):
    run = plan_of(public_dataset="cifar100", data_root=color_root)
    pool = public_pool(run)
    assert pool.shape == (30, 1, 28, 28)
    assert pool.dtype == torch.float32
    assert sum(map(len, client_indices(run))) == 1797  # nothing held out
    check_data(run, 30)
    with pytest.raises(DataError, match="public-size is 31, but the public set holds 30"):
        check_data(run, 31)


def test_the_private_set_cannot_be_the_public_one_by_another_name(tmp_path):
    images = np.zeros((90, 28, 28), dtype=np.uint8)
    write_parquet(tmp_path / "ylecun/mnist/train.parquet", images, [0] * 90, image="image")
    run = plan_of(dataset="mnist", public_dataset="hf:ylecun/mnist", data_root=str(tmp_path))
    for refused in (lambda: check_data(run, 10), lambda: public_pool(run)):
        with pytest.raises(DataError, match="'hf:ylecun/mnist' is the private data set 'mnist' or"):
            refused()


# ---- The client ------------------------------------------------------------------------


def test_clients_and_public_pool_share_no_sample():
    # Digits has no two equal images in it, so that content tells samples apart.
    everything = {image.tobytes() for image in to_float(load_images("digits").images).numpy()}
    assert len(everything) == 1797
    seen = [image.tobytes() for image in public_pool(DIGITS).numpy()]
    assert len(seen) == 200
    for partition_id in range(5):
        client = load_client(DIGITS, partition_id)
        for images in (client.train_images, client.validation_images, client.test_images):
            seen += [image.tobytes() for image in images.numpy()]
    assert len(seen) == len(set(seen)) == 1797
    assert set(seen) == everything


def test_max_samples_takes_all_classes_alike():
    run = plan_of(num_clients=4, max_samples=500, held_out_size=0)
    chosen = np.concatenate(client_indices(run))
    assert len(np.unique(chosen)) == 500
    share = np.bincount(load_labels("digits")[chosen]) / np.bincount(load_labels("digits"))
    assert abs(share - 500 / 1797).max() < 0.01


def test_no_public_set_means_an_empty_pool():
    run = plan_of(public_dataset="none")
    assert public_pool(run).shape == (0, 1, 28, 28)
    check_data(run)
    with pytest.raises(DataError, match="public-size is 1, but the public set holds 0"):
        check_data(run, 1)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"client_split": "0.7/0.1/0.2"}, "is in percent: write 70/10/20"),
        ({"held_out_size": 1797}, "cannot hold out 1797 of 1797"),
        ({"partition": "two-classes", "num_clients": 1000}, "runs out"),
        ({"client_split": "60/20/20", "num_clients": 700}, "too few for the client-split"),
        ({"dataset": "mnist", "data_root": "/nowhere"}, "has no Parquet file of ylecun/mnist"),
        (
            {"public_dataset": "cifar10", "data_root": "/nowhere"},
            "has no Parquet file of uoft-cs/cifar10",
        ),
    ],
)
def test_impossible_data_is_refused_early(change, sentence):
    with pytest.raises(DataError, match=sentence):
        check_data(plan_of(**change), 10)


@pytest.mark.parametrize(("split", "warns"), [("20/10/20", False), ("10/0/20", True)])
def test_a_split_that_leaves_most_samples_unused_is_named(split, warns, caplog):
    check_data(plan_of(client_split=split))
    assert (f"client-split = {split} uses" in caplog.text) == warns


def test_the_split_follows_from_the_data_set():
    built_in, own = (DataSettings(dataset=name).resolved() for name in ("digits", "folder:photos"))
    assert built_in.client_split == built_in.split == "12/0/88"
    # Open, so that a node has its own.
    assert (own.client_split, own.split) == ("auto", "70/10/20")
    assert read_config({}).run.data.client_split == "12/0/88"


@pytest.mark.parametrize("has_own_images", [False, True])
def test_results_can_be_measured_on_validation_data(has_own_images, tmp_path):
    """The other parts stay, and test images are in none of the three."""
    images = np.random.default_rng(0).integers(0, 256, (60, 28, 28), dtype=np.uint8)
    write_image_folder(tmp_path, images, [3] * 60)
    path = str(tmp_path) if has_own_images else ""
    usual, searching = (
        load_client(plan_of(client_split="60/20/20", evaluated_split=split), 1, path)
        for split in ("test", "validation")
    )
    assert torch.equal(searching.train_images, usual.train_images)
    assert torch.equal(searching.validation_images, usual.validation_images)
    assert torch.equal(searching.test_images, usual.validation_images)
    assert torch.equal(searching.test_labels, usual.validation_labels)
    assert set(usual.positions[2]).isdisjoint(usual.positions[1])


def test_there_is_no_client_beyond_the_last():
    with pytest.raises(DataError, match="there is no client 5 among 5"):
        load_client(DIGITS, 5)


def test_a_node_can_bring_its_own_images(tmp_path):
    labels = [1] * 8 + [4] * 8
    images = [np.full((40, 40), 5 * number, dtype=np.uint8) for number in range(16)]
    write_image_folder(tmp_path, images, labels)
    client = load_client(DIGITS, 1, str(tmp_path))
    assert client.shape == (1, 28, 28)
    held = torch.cat([client.train_labels, client.test_labels])
    assert torch.bincount(held).tolist() == [0, 8, 0, 0, 8]
    assert min(len(client.train_labels), len(client.test_labels)) > 0
    assert client.public_images is load_client(DIGITS, 1).public_images
    assert client is not load_client(DIGITS, 1)
