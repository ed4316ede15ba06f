"""Silos that name their class folders otherwise number their classes otherwise."""

import json
import math

import pytest
from datasets import ClassLabel, Dataset, Features, Image
from federation import images_of
from helpers import image_rows, run_with, write_image_folder, write_parquet

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.data.folders import class_names, hash_of_names
from fedkd_flwr.engines.doctor import check_node

SILOS = {"num-clients": 3, "max-samples": 360, "held-out-size": 60, "partition": "iid"}
NAMES = ["Ankle boot", "Bag", "Coat", "Dress", "Pullover", "Sandal", "Shirt", "Sneaker", "T-shirt"]
NAMES += ["Trouser"]


@pytest.fixture
def silos(tmp_path):
    """The folders of three silos; in the last one `ankle-boot` comes after all others."""
    others = ["ankle-boot" if name == "Ankle boot" else name for name in NAMES]
    folders = []
    for n, names in enumerate((NAMES, NAMES, others)):
        images, labels = images_of(SILOS, n)
        folder = tmp_path / f"silo-{n}"
        folders.append(write_image_folder(folder, images, [names[label] for label in labels]))
    return folders


def test_names_are_in_the_order_of_their_numbers(silos, tmp_path):
    assert class_names(str(silos[0]), 10) == NAMES
    assert class_names(str(silos[2]), 10)[0] == "Bag"
    assert class_names("", 10) == class_names(str(tmp_path / "none"), 10) == []
    assert class_names(str(silos[0]), 11) == []
    numbered = write_image_folder(tmp_path / "numbered", *images_of(SILOS, 0))
    assert class_names(str(numbered), 10) == []
    assert hash_of_names([]) == ""
    assert hash_of_names(["a", "bc"]) != hash_of_names(["ab", "c"])


def test_a_silo_with_other_names_is_left_out(silos, small, logged, tmp_path):
    nodes = {n: {"data-path": str(folder)} for n, folder in enumerate(silos)}
    models = {"models": "mlp", "models-dir": str(tmp_path / "models")}
    settings = {**small, **SILOS, **models, "num-server-rounds": 1}
    run, _ = run_with(client_app, settings, tmp_path / "run", node_configs=nodes)
    assert set(run.clients["partition_id"]) == {0, 1}
    assert json.loads((tmp_path / "models" / "0.json").read_text())["class-names"] == NAMES
    assert any("client 2 numbers its classes differently" in line for line in logged())


def named_table(path, n, names):
    """Write a silo's images as `datasets` does, with the names of the labels in the schema."""
    images, labels = images_of(SILOS, n)
    features = Features({"label": ClassLabel(names=names), "image": Image()})
    rows = {"label": [int(label) for label in labels], "image": image_rows(images)}
    Dataset.from_dict(rows, features=features).to_parquet(path)
    return path


def test_names_of_labels_come_from_the_metadata_of_a_table(tmp_path):
    named = named_table(tmp_path / "named.parquet", 0, NAMES)
    assert class_names(str(named), 10) == class_names(str(named), 10, "label") == NAMES
    assert class_names(str(named), 11) == []
    Dataset.from_parquet(str(named), cache_dir=tmp_path / "cache").save_to_disk(tmp_path / "arrow")
    assert class_names(str(tmp_path / "arrow"), 10) == NAMES
    digits = list("0123456789")
    assert class_names(str(named_table(tmp_path / "digits.parquet", 0, digits)), 10) == []
    turned = class_names(str(named_table(tmp_path / "turned.parquet", 0, digits[::-1])), 10)
    assert turned == digits[::-1]
    plain = write_parquet(tmp_path / "plain.parquet", *images_of(SILOS, 0))
    assert class_names(str(plain), 10) == []


def test_a_silo_without_names_takes_part(silos, small, tmp_path):
    numbered = write_image_folder(tmp_path / "numbered", *images_of(SILOS, 2))
    folders = [silos[0], silos[1], numbered]
    nodes = {n: {"data-path": str(folder)} for n, folder in enumerate(folders)}
    settings = {**small, **SILOS, "models": "mlp", "num-server-rounds": 1}
    run, _ = run_with(client_app, settings, tmp_path / "run", node_configs=nodes)
    assert set(run.clients["partition_id"]) == {0, 1, 2}


def test_the_doctor_lists_the_names(silos, small):
    settings = {**small, **SILOS, "models": "mlp"}
    node = {"client-split": settings["client-split"], "epsilon-budget": math.inf}
    texts = [
        next(found.text for found in check_node(settings, node) if found.check == "data")
        for node in ({**node, "partition-id": n, "data-path": str(silos[n])} for n in (0, 1, 2))
    ]
    assert "0 (Ankle boot): " in texts[0] and "9 (ankle-boot): " in texts[2]
    hashes = [text.partition("classes-hash ")[2][:64] for text in texts]
    assert len(hashes[0]) == 64 and hashes[0] == hashes[1] != hashes[2]
