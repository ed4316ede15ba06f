"""The table of evaluations: which models of a client a run evaluates, and which one it shows."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from conftest import SMALL
from safetensors.numpy import load_file, save_file
from test_comparison import write_lines

import fedkd_flwr
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.analysis.groups import new_client_accuracies
from fedkd_flwr.analysis.shown_models import at_best_models, showing
from fedkd_flwr.methods import METHODS
from strategies.core.client_info import ClientInfo
from strategies.core.evaluations import Evaluations, standard_error
from strategies.core.method_record import MethodRecord
from strategies.core.plan import RunPlan
from strategies.core.replies import InvalidReplyError, Reply


@pytest.fixture
def one_client(small):
    """A single client, so that the mean over clients is its own trained model."""
    return {**small, "num-clients": 1, "models": "mlp", "num-server-rounds": 3, "max-samples": 200}


def run_of(settings, folder, **changes):
    return fedkd_flwr.run({**settings, **changes}, output_dir=folder / "run")


def test_the_trained_model_of_the_only_client_is_what_fedavg_evaluates_next(one_client, tmp_path):
    clients = run_of(one_client, tmp_path, strategy="fedavg").clients
    assert len(clients) == 3
    assert list(clients["trained_accuracy"]) == list(clients["accuracy"])
    validation = list(clients["validation_accuracy"])
    assert list(clients["trained_validation_accuracy"]) == validation


@pytest.mark.parametrize(
    ("method", "others"),
    [
        ("local", set()),
        ("kt-pfl", {"distilled"}),
        *((name, {"global"}) for name in ("ditto", "persfl")),
        *((name, {"received"}) for name in ("fedamp", "pfedgraph", "fedgh")),
    ],
)
def test_a_method_evaluates_the_models_that_its_record_names(method, others, small, tmp_path):
    run = run_of(small, tmp_path, strategy=method, models="mlp", **{"num-server-rounds": 2})
    assert {*run.evaluations["model"]} == {"own", *others}
    assert {*METHODS[method].record.evaluates} == others
    for other in others:
        found = run.clients.dropna(subset=f"{other}_accuracy")
        assert len(found) and list(found[f"{other}_accuracy"]) != list(found["accuracy"])


def table_of(run):
    """Return correct predictions by round, client, model and split."""
    return run.evaluations.set_index(["round", "client", "model", "split"])["correct"]


def test_the_table_has_a_row_per_round_client_model_and_split(small, tmp_path):
    run = run_of(small, tmp_path, strategy="fedavg", models="mlp")
    models, splits = ("own", "trained"), ("test", "validation")
    expected = set(itertools.product((1, 2), range(4), models, splits))
    assert set(table_of(run).index) == expected and len(run.evaluations) == len(expected)
    clients = run.clients.set_index(["round", "partition_id"])
    table = run.evaluations.set_index(["round", "client"])
    rows = table[(table["model"] == "trained") & (table["split"] == "validation")]
    accuracies = rows["correct"] / rows["total"]
    assert accuracies.to_dict() == clients["trained_validation_accuracy"].to_dict()
    # An accuracy is on disk once.
    for name in ("rounds", "clients"):
        assert not [key for row in run.stored(name) for key in row if "accuracy" in key]


def as_of_an_earlier_version(run):
    """Rewrite a run as version 0.1.0 wrote it: accuracies in the rows of rounds and clients."""
    lost = ("trained_correct", "trained_validation_correct")
    clients = [{k: v for k, v in row.items() if k not in lost} for row in run.client_rows]
    rows = {"rounds": run.round_rows, "clients": clients}
    arrays = load_file(file := run.path / "checkpoint/server.safetensors")
    for name, lines in rows.items():
        write_lines(table := run.path / f"{name}.jsonl", lines)
        arrays[f"sizes/{name}.jsonl"] = np.array([table.stat().st_size])
    del arrays["sizes/evaluations.jsonl"]
    save_file(arrays, file)
    (run.path / "evaluations.jsonl").unlink()


def test_a_run_of_an_earlier_version_has_the_table_too(small, tmp_path):
    run = run_of(small, tmp_path, strategy="fedavg", models="mlp", safeguard="blend")
    as_of_an_earlier_version(run)
    before = fedkd_flwr.load_run(run.path)
    assert before.round_rows == run.round_rows and before.client_rows == run.client_rows
    assert table_of(before).sort_index().equals(table_of(run).sort_index())


def test_a_run_of_an_earlier_version_is_continued(small, tmp_path):
    settings = {**small, "strategy": "fedavg", "models": "mlp"}
    whole = run_of(settings, tmp_path / "whole")
    as_of_an_earlier_version(run_of(settings, tmp_path, **{"num-server-rounds": 1}))
    longer = fedkd_flwr.resume(tmp_path / "run", num_server_rounds=2)
    accuracies = [column for column in whole.rounds if "accuracy" in column]
    assert longer.rounds[accuracies].equals(whole.rounds[accuracies])
    assert table_of(longer).sort_index().equals(table_of(whole).sort_index())


def reply(client=0, **numbers):
    return Reply(client, {}, {name.replace("_", "-"): value for name, value in numbers.items()})


@pytest.mark.parametrize(
    "counts",
    [
        {"trained_test_correct": 5, "trained_test_total": 4},
        {"trained_test_correct": 3, "trained_test_total": 9},
        {"trained_test_correct": 0.5, "trained_test_total": 4},
        {"trained_test_correct": -1, "trained_test_total": 4},
        {"trained_test_total": 4},
        {"trained_test_loss": 0.5},
        {"trained_validation_correct": 1, "trained_validation_total": 2},
    ],
)
def test_impossible_counts_are_refused(counts):
    client = ClientInfo(0, 1000, "mlp", 50, test_size=4, validation_size=2)
    evaluations = Evaluations(RunPlan(num_classes=10), {0: client}, ["trained"])
    with pytest.raises(InvalidReplyError, match=r"trained-(test|validation)-correct predictions"):
        evaluations.check(reply(**counts))


def test_only_declared_models_may_be_reported():
    plan = RunPlan(num_classes=10)
    names = {metric.name for metric in Evaluations(plan, {}, ["trained"]).metrics}
    assert {"own-test-correct", "trained-validation-loss"} <= names
    assert not [name for name in names if name.startswith(("received", "private", "deployed"))]
    with pytest.raises(ValueError, match="evaluates: 'best' is not one of own, received"):
        MethodRecord(evaluates=("best",))


def test_a_distilled_model_belongs_to_the_round_before():
    client = ClientInfo(0, 1000, "mlp", 50, test_size=4)
    plan = RunPlan(num_classes=10)
    evaluations = Evaluations(plan, {0: client}, ["distilled", "received"])
    evaluations.begin(5, plan)
    counts = {"distilled_test_correct": 3.0, "distilled_test_total": 4.0}
    counts |= {"received_test_correct": 1.0, "received_test_total": 4.0, "train_loss": 0.5}
    assert evaluations.keep(5, {0: reply(**counts)}) == {0: {"train-loss": 0.5}}
    rows = {row["model"]: (row["round"], row["correct"]) for row in evaluations.rows(5, {})}
    assert rows == {"distilled": (4, 3), "received": (5, 1)}


@pytest.fixture(scope="module")
def two_classes_a_client(tmp_path_factory):
    """Runs in which a global model is far worse than after local training."""
    folder = tmp_path_factory.mktemp("runs")
    split = {"partition": "two-classes", "models": "mlp"}
    for method in ("local", "fedavg"):
        fedkd_flwr.run({**SMALL, **split, "strategy": method}, output_dir=folder / method)
    return folder


def test_a_comparison_shows_both_moments(two_classes_a_client):
    table = compare(two_classes_a_client).table
    run = fedkd_flwr.load_run(two_classes_a_client / "fedavg")
    last = run.rounds.iloc[-1]
    assert table.loc["fedavg", "accuracy"] == pytest.approx(last["accuracy_mean"])
    assert table.loc["fedavg", "trained_accuracy"] == pytest.approx(last["trained_accuracy_mean"])
    assert math.isnan(table.loc["local", "trained_accuracy"])
    assert "received_accuracy" not in table


def test_the_best_moment_is_chosen_on_validation_data(two_classes_a_client):
    compared = compare(two_classes_a_client, best_evaluation=True)
    label = "fedavg, after local training"
    assert set(compared.groups) == {"local", label}
    clients = fedkd_flwr.load_run(two_classes_a_client / "fedavg").clients
    last = clients[clients["round"] == 2].set_index("partition_id")
    assert last["trained_validation_accuracy"].mean() > last["validation_accuracy"].mean()
    shown = compared.clients[compared.clients["method"] == label].set_index("partition_id")
    assert shown["accuracy"].to_dict() == last["trained_accuracy"].to_dict()
    local = compared.clients[compared.clients["method"] == "local"]["accuracy"]
    gain = 100 * (last["trained_accuracy"].mean() - local.mean())
    assert 100 * compared.effects[label].gain == pytest.approx(gain)
    assert compared.table.loc[label, "clients_worst"] == last["trained_accuracy"].min()


def test_a_method_whose_training_makes_it_worse_stays_as_received(two_classes_a_client):
    groups = compare(two_classes_a_client).groups
    worse = replace(groups["fedavg"][0])
    vars(worse)["evaluation_rows"] = [
        {**row, "correct": 0} if (row["model"], row["split"]) == ("trained", "validation") else row
        for row in worse.evaluation_rows
    ]
    assert list(at_best_models({"fedavg": [worse]})) == ["fedavg"]


def test_a_moment_that_some_clients_lack_is_not_shown(small, tmp_path):
    half = {"fraction-train": 0.5, "partition": "two-classes", "models": "mlp"}
    fedkd_flwr.run({**small, **half, "strategy": "fedavg"}, output_dir=tmp_path / "fedavg")
    compared = compare(tmp_path, best_evaluation=True)
    assert list(compared.groups) == ["fedavg"]
    assert "trained_accuracy" not in compared.table


def test_what_only_the_first_moment_has_is_not_shown_at_the_second(small, tmp_path):
    changes = {"partition": "two-classes", "models": "mlp", "new-clients": 0.25}
    settings = {**small, **changes, "measures": "classes", "strategy": "fedavg"}
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "fedavg")
    assert len(new_client_accuracies(run)) == 1 and "class_7_total" in run.clients
    other = showing(run, "trained")
    assert new_client_accuracies(other).empty
    assert not [name for name in other.clients if name.startswith(("class_", "held_"))]
    results = compare(tmp_path, best_evaluation=True).results
    assert results["method"].tolist() == ["fedavg, after local training"]
    assert "new_accuracy" not in results


# ---- Evaluations of a sample of clients ----------------------------------------------


SAMPLED = {
    "num-clients": 6, "num-server-rounds": 3, "models": "mlp", "evaluate-clients": 2,
    "fraction-train": 0.5, "max-samples": 300,
}  # fmt: skip


def evaluated(run):
    rows = run.clients.dropna(subset=["accuracy"])
    return {n: sorted(part["partition_id"]) for n, part in rows.groupby("round")}


def test_the_expected_square_of_the_standard_error_is_the_variance_of_the_mean():
    """Over all samples of 2 of 5 clients, each as likely as the others."""
    accuracies = np.array([0.1, 0.4, 0.5, 0.8, 0.9])
    samples = list(itertools.combinations(accuracies, 2))
    errors = [
        standard_error([{"accuracy": a} for a in sample], 5)["accuracy_standard_error"]
        for sample in samples
    ]
    spread = np.mean([(np.mean(sample) - accuracies.mean()) ** 2 for sample in samples])
    assert np.mean(np.square(errors)) == pytest.approx(spread)


@pytest.mark.parametrize("strategy", ["local", "fedavg"])
def test_each_evaluation_draws_by_seed_and_round(small, tmp_path, strategy):
    run = fedkd_flwr.run({**small, **SAMPLED, "strategy": strategy}, output_dir=tmp_path / "run")
    plan = RunPlan(num_clients=6, num_classes=10, num_server_rounds=3, evaluate_clients=2)
    expected = {t: plan.evaluated(t, range(6)) for t in (1, 2, 3)}
    assert evaluated(run) == expected
    assert len(set(map(tuple, expected.values()))) > 1
    last = run.clients[run.clients["round"] == 3].dropna(subset=["accuracy"])["accuracy"]
    error = last.std() / np.sqrt(2) * np.sqrt(1 - 2 / 6)
    assert run.round_rows[-1]["accuracy_standard_error"] == pytest.approx(error)
    assert run.summary["last_round"]["accuracy_standard_error"] == pytest.approx(error)
    assert run.round_rows[-1]["accuracy_mean"] == pytest.approx(last.mean())


def test_the_accuracies_are_those_of_a_run_that_evaluates_all(small, tmp_path):
    settings = {**small, **SAMPLED, "strategy": "fedavg"}
    some = fedkd_flwr.run(settings, output_dir=tmp_path / "some")
    every = fedkd_flwr.run({**settings, "evaluate-clients": 0}, output_dir=tmp_path / "every")
    assert "accuracy_standard_error" not in every.rounds
    both = some.clients.merge(every.clients, on=["round", "partition_id"]).dropna(
        subset=["accuracy_x"]
    )
    assert len(both) == 6
    np.testing.assert_array_equal(both["accuracy_x"], both["accuracy_y"])
