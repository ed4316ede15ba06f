"""Clients that learn at the start of a round are also evaluated after the last distillation."""

import math

import pytest
from helpers import Witness, run_with

import fedkd_flwr
from fedkd_flwr.analysis.shown_models import showing
from fedkd_flwr.export import read_card
from fedkd_flwr.methods import METHODS
from fedkd_flwr.runs import prefers_distilled

DISTILLING = ["kt-pfl", "sim-pfl", "topk-pfl", "fedmd", "ds-fl", "selective-fd"]
FOREST = {
    "models": "sklearn.ensemble:RandomForestClassifier",
    "estimator-options": "RandomForestClassifier = {n_estimators = 2, max_depth = 3}",
}


@pytest.fixture
def toy(small):
    own = {"models": "mlp", "num-server-rounds": 3, "selective-fd.server-threshold": 2.0}
    return {**small, "strategy": "kt-pfl", **own}


def table_of(run, *models):
    """Return counts and losses by round, client, model and split, of some models."""
    rows = run.evaluations.set_index(["model", "round", "client", "split"]).sort_index()
    return rows.loc[[*(models or ("own", "distilled"))]]


def test_all_methods_that_distill_first_declare_it():
    assert {n for n in METHODS if "distilled" in METHODS[n].record.evaluates} == {*DISTILLING}


@pytest.mark.parametrize("changes", [{"strategy": name} for name in DISTILLING] + [FOREST])
@pytest.mark.parametrize("cohort", ["off", "on"])
def test_the_message_after_the_last_round_finds_what_another_round_begins_with(
    changes, cohort, toy, tmp_path
):
    settings = {**toy, **changes, "cohort": cohort}
    short = fedkd_flwr.run(settings, output_dir=tmp_path / "short", num_server_rounds=2)
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")
    clients, splits = settings["num-clients"], 2
    assert len(table_of(whole, "distilled")) == 3 * clients * splits
    assert table_of(short).equals(table_of(whole).query("round < 3"))
    # Nothing is kept of it, and no row is written twice.
    longer = fedkd_flwr.resume(tmp_path / "short", num_server_rounds=3, allow_code=["sklearn"])
    assert table_of(longer).equals(table_of(whole))


def test_the_last_message_is_counted_as_traffic_and_is_no_training(toy, tmp_path):
    witness = Witness()
    run, _ = run_with(witness, toy, tmp_path / "run")
    sent = witness.down[3, "distillation", 1]["teacher"]
    assert not witness.up[3, "distillation", 1]
    assert {*witness.metrics[3, "distillation", 1]} == {
        f"distilled-{split}-{name}"
        for split in ("test", "validation")
        for name in ("correct", "total", "loss")
    }
    down = run.clients.pivot(index="round", columns="partition_id", values="numbers_down")[1]
    assert list(down) == [0, sent.size, 2 * sent.size]
    steps = run.rounds["gradient_steps"]
    assert steps[1] == steps[2]


def test_only_clients_that_are_asked_have_a_row(toy, tmp_path):
    half = {"fraction-train": 0.5, "evaluate-every": 2}
    witness = Witness()
    run, _ = run_with(witness, toy, tmp_path / "run", **half)
    rows = table_of(run, "distilled").reset_index()
    asked = {n: {*rows[rows["round"] == n]["client"]} for n in (1, 2, 3)}
    assert asked == {1: set(), 2: {*witness.trained(3)}, 3: {0, 1, 2, 3}}


@pytest.mark.parametrize("is_distilled", [False, True])
def test_a_run_exports_what_it_has_chosen(is_distilled, toy, tmp_path, monkeypatch):
    monkeypatch.setattr("fedkd_flwr.server_app.prefers_distilled", lambda run: is_distilled)
    models = tmp_path / "models"
    run = fedkd_flwr.run(toy, output_dir=tmp_path / "run", models_dir=models)
    clients = run.last_evaluations
    prefix = "distilled_" if is_distilled else ""
    for n in range(4):
        card = read_card(models / f"{n}.safetensors")
        assert ("evaluated" in card) == is_distilled
        assert card["metrics"]["correct"] == clients[f"{prefix}correct"][n]
        loaded = fedkd_flwr.load_model(models / f"{n}.safetensors")
        assert loaded
    assert {file.name for file in models.iterdir()} == {
        f"{n}.{kind}" for n in range(4) for kind in ("json", "safetensors")
    }


def rows_of(*clients):
    names = ("validation_accuracy", "distilled_validation_accuracy")
    return [
        {"round": 2, "accuracy": 0.5, **dict(zip(names, values, strict=False))}
        for values in clients
    ]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (rows_of((0.5, 0.6), (0.5, 0.5)), True),
        (rows_of((0.5, 0.6), (0.5, 0.4)), False),
        (rows_of((0.5, 0.6), (0.5,)), False),
        (rows_of((), ()), False),
    ],
)
def test_validation_data_choose_if_all_clients_have_both_results(rows, expected):
    class Stored:
        round_rows = ({"round": 2},)
        client_rows = rows

    assert prefers_distilled(Stored()) == expected


def test_a_node_chooses_itself(toy, tmp_path):
    """Client 1 tells the server no results, and chooses as it would if it told them."""
    nodes = {
        n: {
            "models-dir": str(tmp_path / f"node-{n}"),
            "trust-server": n != 1,
            "epsilon-budget": math.inf,
            "min-class-count": 0,
        }
        for n in range(4)
    }
    run, _ = run_with(Witness(), toy, tmp_path / "run", node_configs=nodes)
    assert {*run.last_evaluations.index} == {0, 2, 3}
    clients = fedkd_flwr.run(toy, output_dir=tmp_path / "told").last_evaluations
    better = clients["distilled_validation_accuracy"] > clients["validation_accuracy"]
    for n in range(4):
        (file,) = (tmp_path / f"node-{n}").rglob("*.safetensors")
        assert ("evaluated" in read_card(file)) == better[n]
    assert better[1] and not better.all()


def test_new_clients_distill_once_more_too(toy, tmp_path):
    settings = {**toy, "new-clients": 0.25, "new-client-rounds": 2}
    witness = Witness()
    run, _ = run_with(witness, settings, tmp_path / "run")
    (row,) = run.further_rows["new_clients"]
    told = witness.metrics[2, "distillation", row["partition_id"]]
    assert row["distilled_correct"] == told["distilled-test-correct"]
    (shown,) = showing(run, "distilled").further_rows["new_clients"]
    assert shown["accuracy"] == row["distilled_accuracy"]
