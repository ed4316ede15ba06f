"""The table of evaluations: which models of a client a run evaluates, and which one it shows."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from conftest import SMALL
from helpers import Witness, run_with, write_lines
from safetensors.numpy import load_file, save_file

import fedkd_flwr
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.analysis.groups import at_best_models, showing
from fedkd_flwr.export import read_card
from fedkd_flwr.methods import METHODS
from fedkd_flwr.runs import prefers_distilled
from strategies.core.evaluations import Evaluations, standard_error
from strategies.core.method_record import MethodRecord
from strategies.core.plan import RunPlan
from strategies.core.replies import ClientInfo, InvalidReplyError, Reply


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


# ---- After the last distillation -----------------------------------------------------


DISTILLING = [name for name in METHODS if "distilled" in METHODS[name].record.evaluates]
FOREST = {
    "models": "sklearn.ensemble:RandomForestClassifier",
    "estimator-options": "RandomForestClassifier = {n_estimators = 2, max_depth = 3}",
}


@pytest.fixture
def toy(small):
    own = {"models": "mlp", "num-server-rounds": 3, "selective-fd.server-threshold": 2.0}
    return {**small, "strategy": "kt-pfl", **own}


def table_of_models(run, *models):
    """Return counts and losses by round, client, model and split, of some models."""
    rows = run.evaluations.set_index(["model", "round", "client", "split"]).sort_index()
    return rows.loc[[*(models or ("own", "distilled"))]]


@pytest.mark.parametrize("changes", [{"strategy": name} for name in DISTILLING] + [FOREST])
@pytest.mark.parametrize("cohort", ["off", "on"])
def test_the_message_after_the_last_round_finds_what_another_round_begins_with(
    changes, cohort, toy, tmp_path
):
    settings = {**toy, **changes, "cohort": cohort}
    short = fedkd_flwr.run(settings, output_dir=tmp_path / "short", num_server_rounds=2)
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")
    clients, splits = settings["num-clients"], 2
    assert len(table_of_models(whole, "distilled")) == 3 * clients * splits
    assert table_of_models(short).equals(table_of_models(whole).query("round < 3"))
    # Nothing is kept of it, and no row is written twice.
    longer = fedkd_flwr.resume(tmp_path / "short", num_server_rounds=3, allow_code=["sklearn"])
    assert table_of_models(longer).equals(table_of_models(whole))


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
    rows = table_of_models(run, "distilled").reset_index()
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
