"""Accuracy as received and after local training, where clients are sent a model."""

import math
from dataclasses import replace

import pytest
from conftest import SMALL

import fedkd_flwr
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.analysis.groups import new_client_accuracies
from fedkd_flwr.analysis.second_evaluation import at_best_evaluations, at_second_evaluation
from strategies.core.client_info import ClientInfo
from strategies.core.evaluations import Evaluations
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


def test_the_only_client_of_kt_pfl_on_parameters_receives_its_own_last_model(one_client, tmp_path):
    clients = run_of(one_client, tmp_path, strategy="kt-pfl-params").clients
    assert list(clients["received_accuracy"])[1:] == list(clients["accuracy"])[:-1]
    assert clients["received_accuracy"].iloc[0] != clients["accuracy"].iloc[0]


def test_local_training_helps_clients_with_few_classes(small, tmp_path):
    split = {"partition": "two-classes", "num-server-rounds": 2, "models": "mlp"}
    run = run_of(small, tmp_path, strategy="fedavg", **split)
    means = run.clients.groupby("round")[["accuracy", "trained_accuracy"]].mean()
    assert list(run.rounds["trained_accuracy_mean"]) == pytest.approx(means["trained_accuracy"])
    assert list(run.rounds["accuracy_mean"]) == pytest.approx(means["accuracy"])
    assert (means["trained_accuracy"] > means["accuracy"] + 0.1).all()


def test_only_clients_of_the_round_have_an_accuracy_after_training(small, tmp_path):
    half = {"fraction-train": 0.5, "evaluate-every": 2, "num-server-rounds": 2, "models": "mlp"}
    clients = run_of(small, tmp_path, strategy="fedavg", **half).clients
    trained = clients[clients["train_loss"].notna()]
    counted = clients[clients["trained_accuracy"].notna()]
    assert list(counted["partition_id"]) == list(trained[trained["round"] == 2]["partition_id"])


@pytest.mark.parametrize("method", ["fedamp", "pfedgraph", "fedgh"])
def test_clients_that_train_what_they_receive_are_counted_before_it(method, small, tmp_path):
    run = run_of(small, tmp_path, strategy=method, models="mlp", **{"num-server-rounds": 2})
    received = run.clients["received_accuracy"]
    assert received.notna().all() and list(received) != list(run.clients["accuracy"])


@pytest.mark.parametrize("method", ["local", "kt-pfl", "ditto"])
def test_methods_that_replace_no_model_have_one_moment(method, small, tmp_path):
    run = run_of(small, tmp_path, strategy=method, models="mlp", **{"num-server-rounds": 1})
    assert not [name for name in run.clients if name.startswith(("received_", "trained_"))]


@pytest.mark.parametrize(
    "counts",
    [
        {"trained-correct": 5.0, "trained-total": 4.0},
        {"trained-correct": 3.0, "trained-total": 9.0},
        {"trained-correct": 0.5, "trained-total": 4.0},
        {"trained-total": 4.0},
    ],
)
def test_impossible_counts_after_training_are_refused(counts):
    client = ClientInfo(0, 1000, "mlp", 50, test_size=4)
    evaluations = Evaluations(RunPlan(num_classes=10), {0: client}, "trained")
    with pytest.raises(InvalidReplyError, match="trained-correct predictions"):
        evaluations.check_train_reply(Reply(0, {}, counts))


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
    worse = {
        label: [
            replaced_rows(run, trained_validation_accuracy=0.0, trained_accuracy=1.0)
            for run in runs
        ]
        for label, runs in groups.items()
    }
    assert list(at_best_evaluations(worse)) == list(groups)


def test_a_moment_that_some_clients_lack_is_not_shown(small, tmp_path):
    half = {"fraction-train": 0.5, "partition": "two-classes", "models": "mlp"}
    fedkd_flwr.run({**small, **half, "strategy": "fedavg"}, output_dir=tmp_path / "fedavg")
    compared = compare(tmp_path, best_evaluation=True)
    assert list(compared.groups) == ["fedavg"]
    assert "trained_accuracy" not in compared.table


def replaced_rows(run, **values):
    other = replace(run)
    vars(other)["client_rows"] = [
        {**row, **values} if "trained_accuracy" in row else row for row in run.client_rows
    ]
    return other


def test_steps_of_fine_tuning_are_not_those_of_the_second_moment(small, tmp_path):
    settings = {**small, "models": "mlp", "strategy": "fedavg-ft"}
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    training = sum(row["gradient_steps"] for row in run.round_rows)
    assert run.summary["gradient_steps"] > training
    assert at_second_evaluation(run, "trained").summary["gradient_steps"] == training


def test_what_only_the_first_moment_has_is_not_shown_at_the_second(small, tmp_path):
    changes = {"partition": "two-classes", "models": "mlp", "new-clients": 0.25}
    settings = {**small, **changes, "measures": "classes", "strategy": "fedavg"}
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "fedavg")
    assert len(new_client_accuracies(run)) == 1 and "class_7_total" in run.clients
    other = at_second_evaluation(run, "trained")
    assert new_client_accuracies(other).empty
    assert not [name for name in other.clients if name.startswith(("class_", "held_"))]
    results = compare(tmp_path, best_evaluation=True).results
    assert results["method"].tolist() == ["fedavg, after local training"]
    assert "new_accuracy" not in results
