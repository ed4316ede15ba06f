"""Published work in this project and in plain Flower: both do the same training and tests."""

import copy

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch.nn.functional import cross_entropy

from benchmarks import published
from benchmarks.flower_simulation import FedAvgWithTests, client_app_for
from benchmarks.published import logistic_regression

CLIENTS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The samples of a few clients of digits, as a run of the benchmark finds them."""
    written = tmp_path_factory.mktemp("clients")
    further = {"dataset": "digits", "num-clients": CLIENTS, "max-samples": CLIENTS * 14}
    further |= {"fraction-train": 0.25}
    published.write_clients({**published.settings_for(""), **further}, CLIENTS, written)
    return written


def part_of(folder, part, client):
    return torch.from_numpy(np.load(folder / f"{part}.npy")[client])


def answer(folder, message_type, client, model):
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "config": ConfigRecord()})
    message = Message(content, dst_node_id=1, message_type=message_type)
    context = Context(1, 1, {"partition-id": client}, RecordDict(), {})
    return client_app_for(folder)(message, context).content


def test_every_client_has_its_samples(folder):
    assert np.load(folder / "train_images.npy").shape == (CLIENTS, 12, 1, 28, 28)
    assert np.load(folder / "test_labels.npy").shape == (CLIENTS, 2)


def test_the_plain_client_trains_the_received_model_on_its_own_samples(folder):
    torch.manual_seed(0)
    model = logistic_regression()
    trained = copy.deepcopy(model)
    for _ in range(20):
        reply = answer(folder, "train", 3, trained)
        trained.load_state_dict(reply["arrays"].to_torch_state_dict())
    assert reply["metrics"]["num-examples"] == 12
    images, labels = part_of(folder, "train_images", 3), part_of(folder, "train_labels", 3)
    before, after = (cross_entropy(one(images), labels) for one in (model, trained))
    assert after < before


def test_the_plain_client_tests_the_received_model(folder):
    torch.manual_seed(0)
    model = logistic_regression()
    labels = part_of(folder, "test_labels", 5)
    correct = model(part_of(folder, "test_images", 5)).argmax(dim=1) == labels
    metrics = answer(folder, "evaluate", 5, model)["metrics"]
    assert metrics == {"accuracy": float(correct.float().mean()), "num-examples": 2}


def test_other_rounds_are_not_tested():
    strategy = FedAvgWithTests()
    for server_round in (1, published.TEST_EVERY - 1, published.TEST_EVERY + 1):
        assert strategy.configure_evaluate(server_round, ArrayRecord(), ConfigRecord(), None) == []


def test_rows_are_ratios_of_seconds():
    theirs, ours = {"whole": 90.0, "a_round": 0.6}, {"whole": 30.0, "a_round": 0.1}
    whole, training = published.rows(theirs, ours, 100)
    assert (whole.measured, whole.baseline, whole.ratio, whole.misses_target) == (90, 30, 3, True)
    assert (training.ratio, training.misses_target) == (pytest.approx(6), False)


@pytest.mark.slow
def test_both_run_in_processes_of_their_own(folder, monkeypatch):
    # One worker of Ray is enough for twelve clients.
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", '{"CPU": 1}')
    for engine in published.ENGINES:
        found = published.measured(engine, folder, published.TEST_EVERY)
        assert 0 < found["a_round"] < found["whole"]
        assert 0 <= found["accuracy"] <= 1
