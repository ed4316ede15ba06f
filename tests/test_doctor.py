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
    assert list(found) == [
        "policy", "node config", "privacy", "device", "data", "public set", "model", "state-dir",
        "models-dir",
    ]  # fmt: skip
    sizes = re.search(r"(\d+) samples to train, (\d+) to val.*, (\d+) to test", found["data"].text)
    assert sum(map(int, sizes.groups())) == 100
    assert "lenet" in found["model"].text
    assert len(found["public set"].text.rpartition("public-hash ")[2]) == 64


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


def test_a_node_that_says_nothing_about_noise_learns_what_to_say(small, node):
    del node["epsilon-budget"]
    failure = only_failure(small, node)
    assert failure.check == "policy"
    assert "epsilon-budget=inf in its node config would allow it" in failure.text
    node["epsilon-budget"] = 10.0
    assert all(finding.ok for finding in findings_by_check(small, node, **NOISE).values())


def test_the_spent_budget_is_said(small, node, tmp_path):
    node["epsilon-budget"] = 30.0
    ledger = PrivacyLedger(tmp_path / "state" / "1" / "privacy-ledger.jsonl")
    for server_round in (1, 2):
        ledger.record({"noise-multiplier": 2.0}, "0f", server_round)
    spent = privacy_spent(2.0, 2, 1e-5)
    found = findings_by_check(small, node, **NOISE)["privacy"]
    told = f"epsilon {spent:.2f} for predictions and %.2f for trainings, of 30 each, spent by"
    assert found.text == f"{told % 0} earlier rounds"
    ledger.record({"sampling-rate": 1.0, "noise-multiplier": 4.0, "steps": 1}, "0f", 3)
    found = findings_by_check(small, node, **NOISE)["privacy"]
    assert found.text == f"{told % ledger.epsilon_of_training} earlier rounds"
    for _ in range(2):
        ledger.record({"count-noise": 2.0}, "0f", 1)
    found = findings_by_check(small, {**node, "allow-counts": "noised"}, **NOISE)["privacy"]
    assert found.text.endswith(f"rounds; counts: epsilon {spent:.2f} of 10 spent")


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
        "epsilon 0.00 for predictions and 0.00 for trainings, of 0.5 each, spent by earlier rounds,"
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


def test_groups_of_images_are_kept_together(small, node):
    found = findings_by_check(small, {**node, "group-pattern": "^[0-9]{3}"})
    assert all(finding.ok for finding in found.values())
    alone = findings_by_check(small, node)
    assert found["data"].text != alone["data"].text


@pytest.mark.parametrize(
    ("changes", "asked", "check", "text"),
    [
        ({"data-path": "/nowhere"}, {}, "data", "no folder or Parquet file at '/nowhere'"),
        ({"data-path": "TMP/broken"}, {}, "data", "0003.png' is no readable image file"),
        ({"data-path": "TMP/other"}, {}, "data", "holds classes 5 to 14, allowed are 0 to 9"),
        ({"data-path": "TMP/few"}, {}, "data", "too few for the client-split"),
        ({"group-pattern": "patient-[0-9]+"}, {}, "data", "group-pattern fits 0 of 100 file names"),
        ({"group-pattern": "("}, {}, "policy", "group-pattern is not a regular expression"),
        ({"model": "perceptron"}, {}, "model", "model 'perceptron' is not one of"),
        (
            {"allow-methods": "fedavg"},
            {"strategy": "fedavg", "models": "mlp"},
            "model",
            "the node's model is lenet, and fedavg needs the run's, mlp",
        ),
        ({}, {"public-hash": "0" * 64}, "public set", "public-hash is "),
        ({"state-dir": "TMP/file/state"}, {}, "state-dir", "Not a directory"),
        ({"keep-runs": -1}, {}, "node config", "it must be 0 or a number of runs"),
        ({"keep-runs": "2"}, {}, "node config", "it must be 0 or a number of runs"),
        ({"partition-id": 4}, {}, "node config", "it must be one of 0..3"),
        ({"partition-id": "1"}, {}, "node config", "it must be one of 0..3"),
        ({"partition-id": None}, {}, "node config", "it must be one of 0..3"),
        (
            {"datapath": "/data"},
            {},
            "node config",
            "unknown datapath in the node's config",
        ),
        ({}, {"strategy": "kt-fpl"}, "run config", "kt-fpl"),
    ],
)
def test_what_is_wrong_is_the_only_failure(changes, asked, check, text, small, node, tmp_path):
    images, labels = images_of(OWN, 1)
    (tmp_path / "file").write_text("")
    write_image_folder(tmp_path / "few", images[:2], labels[:2])
    write_image_folder(tmp_path / "broken", images, labels)
    (tmp_path / "broken" / str(labels[3]) / "0003.png").write_bytes(b"no image")
    write_parquet(tmp_path / "other", images, labels + 5)
    for key, value in changes.items():
        node[key] = value.replace("TMP", str(tmp_path)) if isinstance(value, str) else value
    failure = only_failure(small, node, **asked)
    assert failure.check == check and text in failure.text
