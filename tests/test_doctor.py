"""What `fedkd doctor` finds on good and on broken nodes."""

import math
import re

import pytest
from federation import images_of
from helpers import write_image_folder, write_parquet

from fedkd_flwr.clients.privacy_ledger import PrivacyLedger
from fedkd_flwr.engines.doctor import check_node
from strategies.core.privacy import privacy_spent

OWN = {"partition": "iid", "client-split": "60/20/20", "held-out-size": 60, "max-samples": 460}
OWN |= {"num-clients": 4}
SIMULATED = {"client-split": "12/0/88", "max-samples": 1200}


@pytest.fixture
def node(tmp_path):
    """A good node config with image folders of its own."""
    data = write_image_folder(tmp_path / "images", *images_of(OWN, 1))
    return {
        "partition-id": 1,
        "num-partitions": 4,
        "model": "lenet",
        "data-path": str(data),
        "client-split": OWN["client-split"],
        "state-dir": str(tmp_path / "state"),
        "epsilon-budget": math.inf,
        "models-dir": str(tmp_path / "models"),
    }


def findings_by_check(small, node, **changes):
    return {finding.check: finding for finding in check_node({**small, **OWN, **changes}, node)}


def only_failure(small, node, **changes):
    failed = [f for f in check_node({**small, **OWN, **changes}, node) if not f.ok]
    assert len(failed) == 1, failed
    return failed[0]


def test_a_good_node(small, node):
    found = findings_by_check(small, node)
    assert all(finding.ok for finding in found.values())
    checks = [
        "policy",
        "node config",
        "privacy",
        "device",
        "data",
        "public set",
        "model",
        "state-dir",
        "models-dir",
    ]
    assert list(found) == checks
    sizes = re.search(r"(\d+) samples to train, (\d+) to val.*, (\d+) to test", found["data"].text)
    assert sum(map(int, sizes.groups())) == 100
    assert "lenet" in found["model"].text
    assert len(found["public set"].text.rpartition("public-hash ")[2]) == 64


def test_a_good_node_with_a_parquet_file(small, node, tmp_path):
    data = write_parquet(tmp_path / "own.parquet", *images_of(OWN, 2))
    assert all(f.ok for f in check_node({**small, **OWN}, {**node, "data-path": str(data)}))


def test_a_node_that_serves_a_partition_and_keeps_nothing(small):
    found = findings_by_check(small, {"partition-id": 0}, strategy="local")
    assert all(finding.ok for finding in found.values())
    assert "a share of digits" in found["data"].text
    assert "forgets its model" in found["state-dir"].text
    assert "public set" not in found


NOISE = {"soft-predictions.noise-multiplier": 2.0, "soft-predictions.clip-norm": 1.0}


def test_a_run_without_noise_is_said(small, node):
    found = findings_by_check(small, node)["privacy"]
    assert found.ok
    assert found.text.startswith("Warning: what the method sends leaves without noise")
    assert findings_by_check(small, node, strategy="local")["privacy"].text == (
        "the method exchanges nothing"
    )


def test_the_noise_of_privatekt_is_seen(small, node):
    found = findings_by_check(
        small, node, strategy="privatekt", **{"soft-predictions.noise-seed": -1}
    )
    assert "without noise" not in found["privacy"].text


def test_a_node_that_says_nothing_about_noise_learns_what_to_say(small, node):
    del node["epsilon-budget"]
    failure = only_failure(small, node)
    assert failure.check == "policy"
    assert "epsilon-budget=inf in its node config would allow it" in failure.text
    assert all(finding.ok for finding in findings_by_check(small, node, **NOISE).values())


def test_the_spent_budget_is_said(small, node, tmp_path):
    node["epsilon-budget"] = 30.0
    ledger = PrivacyLedger(tmp_path / "state" / "1" / "privacy-ledger.jsonl")
    for server_round in (1, 2):
        ledger.record({"noise-multiplier": 2.0}, "0f", server_round)
    spent = privacy_spent(2.0, 2, 1e-5)
    found = findings_by_check(small, node, **NOISE)["privacy"]
    assert found.text == f"epsilon {spent:.2f} of 30 spent by earlier rounds"


@pytest.mark.parametrize(
    "changes",
    [
        NOISE,
        {"dp-sgd-noise-multiplier": 1.0},
        {"strategy": "privatekt", "soft-predictions.noise-seed": -1, "privatekt.epsilon": 4.0},
    ],
    ids=["predictions", "training", "labels"],
)
def test_a_spent_budget_is_a_failure(changes, small, node, tmp_path):
    node["epsilon-budget"] = 1e4
    assert findings_by_check(small, node, **changes)["privacy"].ok
    node["epsilon-budget"] = 0.5
    failure = only_failure(small, node, **changes)
    assert failure.check == "privacy"
    assert failure.text.startswith(
        "epsilon 0.00 of 0.5 spent by earlier rounds, and one more round"
    )
    assert not list((tmp_path / "state").rglob("*"))


@pytest.mark.parametrize(
    ("split", "used", "warns"),
    [("12/0/88", "70/10/20", False), ("40/0/60", "40/0/60", True), ("60/20/20", "", False)],
)
def test_a_split_that_trains_on_the_smaller_part_draws_a_warning(small, node, split, used, warns):
    """A node with its own data replaces the default split, which is for simulations."""
    node |= {"client-split": "any", "min-class-count": 1}
    found = findings_by_check(small, node, **{"client-split": split})["data"]
    assert found.ok
    assert ("trains on less than half of the samples" in found.text) == warns
    train, *others = map(
        int, re.findall(r"(\d+)(?: samples)? to (?:train|validate|test)", found.text)
    )
    assert (train < sum(others)) == warns
    if warns:
        assert f"Warning: client-split = {used} trains" in found.text
        assert "a usual choice is 70/10/20" in found.text


def test_validation_samples_are_counted_once_where_they_are_the_test_samples(small, node):
    split = {"client-split": "55/40/5", "evaluated-split": "validation"}
    found = findings_by_check(
        small, {**node, "client-split": "any", "min-class-count": 1}, **split
    )["data"]
    assert found.ok and "Warning" not in found.text


def test_a_share_of_the_runs_data_keeps_the_split_of_the_run(small):
    """Only a node with its own data replaces the default split, so a share of a data set warns."""
    found = findings_by_check(small, {"partition-id": 0}, strategy="local", **SIMULATED)["data"]
    assert "Warning: client-split = 12/0/88 trains on less than half of the samples" in found.text


def test_groups_of_images_are_kept_together(small, node):
    found = findings_by_check(small, {**node, "group-pattern": "^[0-9]{3}"})
    assert all(finding.ok for finding in found.values())
    alone = findings_by_check(small, node)
    assert found["data"].text != alone["data"].text
    failure = only_failure(small, {**node, "group-pattern": "patient-[0-9]+"})
    assert failure.check == "data"
    assert "group-pattern fits 0 of 100 file names" in failure.text
    failure = only_failure(small, {**node, "group-pattern": "("})
    assert "group-pattern is not a regular expression" in failure.text


def test_missing_data(small, node):
    failure = only_failure(small, {**node, "data-path": "/nowhere"})
    assert failure.check == "data"
    assert "no folder or Parquet file at '/nowhere'" in failure.text


def test_a_file_that_cannot_be_read_is_named(small, node, tmp_path):
    images, labels = images_of(OWN, 1)
    data = write_image_folder(tmp_path / "broken", images, labels)
    broken = sorted(data.rglob("*.png"))[3]
    broken.write_bytes(b"no image")
    failure = only_failure(small, {**node, "data-path": str(data)})
    assert failure.check == "data"
    assert failure.text.startswith(f"{str(broken)!r} is no readable image file: it is none of")


def test_an_unknown_class(small, node, tmp_path):
    images, labels = images_of(OWN, 1)
    data = write_parquet(tmp_path / "own.parquet", images, labels + 5)
    failure = only_failure(small, {**node, "data-path": str(data)})
    assert failure.check == "data"
    assert "holds classes 5 to 14, allowed are 0 to 9" in failure.text


def test_too_few_samples(small, node, tmp_path):
    images, labels = images_of(OWN, 1)
    data = write_image_folder(tmp_path / "few", images[:2], labels[:2])
    assert (
        "too few for the client-split" in only_failure(small, {**node, "data-path": str(data)}).text
    )


def test_an_unknown_model(small, node):
    failure = only_failure(small, {**node, "model": "perceptron"})
    assert failure.check == "model"
    assert "model 'perceptron' is not one of" in failure.text


def test_a_model_that_is_not_the_runs(small, node):
    node["allow-methods"] = "fedavg"
    failure = only_failure(small, node, strategy="fedavg", models="mlp")
    assert "the node's model is lenet, and fedavg needs the run's, mlp" in failure.text


def test_another_public_set(small, node):
    failure = only_failure(small, node, **{"public-hash": "0" * 64})
    assert failure.check == "public set"
    assert failure.text.startswith("public-hash is ")


def test_a_folder_that_cannot_be_written(small, node, tmp_path):
    (tmp_path / "file").write_text("")
    failure = only_failure(small, {**node, "state-dir": str(tmp_path / "file" / "state")})
    assert failure.check == "state-dir"
    assert "Not a directory" in failure.text


def test_a_misspelled_key_and_a_partition_out_of_range(small, node):
    misspelt = only_failure(small, {**node, "datapath": "/data"})
    assert "unknown datapath in the node's config; allowed are partition-id" in misspelt.text
    for partition_id in (4, "1", None):
        failure = only_failure(small, {**node, "partition-id": partition_id})
        assert "it must be one of 0..3" in failure.text


def test_keep_runs_is_a_number(small, node):
    assert all(f.ok for f in check_node({**small, **OWN}, {**node, "keep-runs": 2}))
    for value in (-1, "2"):
        failure = only_failure(small, {**node, "keep-runs": value})
        assert "it must be 0 or a number of runs" in failure.text


def test_a_run_config_that_cannot_work(small, node):
    failure = only_failure(small, node, strategy="kt-fpl")
    assert failure.check == "run config"
