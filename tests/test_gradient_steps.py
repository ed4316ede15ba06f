"""Gradient steps: what each client takes in a round, on its own batches and in distillation."""

import json
import math

import pytest
import torch
from flwr.app import Context, RecordDict

import fedkd_flwr
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.bundles.approved_runs import approve_run
from fedkd_flwr.client_app import build_client
from fedkd_flwr.config import read_config
from fedkd_flwr.training.loop import joined


@pytest.fixture
def base(small):
    return {**small, "strategy": "local", "models": "mlp", "max-samples": 300}


def steps_by_round(run):
    table = run.clients.pivot(index="partition_id", columns="round", values="gradient_steps")
    return table.astype(int), dict(run.clients.groupby("partition_id")["num_examples"].first())


def batches(samples, size):
    """The number of batches of an epoch: a last batch of one sample joins the one before."""
    return math.ceil(samples / size) - (samples > 1 and samples % size == 1)


def test_local_takes_a_step_for_each_batch_of_each_epoch(base, tmp_path):
    run = fedkd_flwr.run({**base, "local-epochs": 3}, output_dir=tmp_path / "run")
    table, sizes = steps_by_round(run)
    for n, size in sizes.items():
        assert table.loc[n].tolist() == [3 * batches(size, 16)] * 2
    assert run.rounds["gradient_steps"].tolist() == table.sum().tolist()
    assert run.summary["gradient_steps"] == table.to_numpy().sum()


def test_distillation_steps_count_from_the_second_round(base, tmp_path):
    distillation = {"kt-pfl.distillation-epochs": 2, "kt-pfl.public-batch-size": 15}
    run = fedkd_flwr.run(
        {**base, "strategy": "kt-pfl", **distillation}, output_dir=tmp_path / "run"
    )
    table, sizes = steps_by_round(run)
    for n, size in sizes.items():
        private = batches(size, 16)
        assert table.loc[n].tolist() == [private, private + 2 * batches(40, 15)]


def test_the_second_stage_of_persfl_counts_in_its_last_round(base, tmp_path):
    run = fedkd_flwr.run({**base, "strategy": "persfl"}, output_dir=tmp_path / "run")
    table, sizes = steps_by_round(run)
    # Lambda 0 ignores T, so there are three pairs, one epoch each.
    assert table[2].to_dict() == {n: (1 + 3) * batches(size, 16) for n, size in sizes.items()}


def test_new_clients_have_steps_of_their_own(base, tmp_path):
    run = fedkd_flwr.run({**base, "new-clients": 0.25}, output_dir=tmp_path / "run")
    (new,) = run.further_rows["new_clients"]
    assert run.round_rows[-1]["new_gradient_steps"] == 2 * batches(new["num_examples"], 16)
    assert run.summary["gradient_steps"] == run.rounds["gradient_steps"].sum()


def test_a_comparison_shows_the_steps_of_a_client_unless_earlier_code_made_the_runs(base, tmp_path):
    run = fedkd_flwr.run({**base, "fraction-train": 0.5}, output_dir=tmp_path / "run")
    shown = compare(run)
    assert shown.table["gradient_steps"].tolist() == [run.summary["gradient_steps"] / 4]
    assert "gradient steps of a client" in shown.to_markdown()
    earlier = {name: value for name, value in run.summary.items() if name != "gradient_steps"}
    (run.path / "summary.json").write_text(json.dumps(earlier))
    assert "gradient steps" not in compare(run.path).to_markdown()


def fine_tuning_by_round(run):
    table = run.clients.pivot(index="partition_id", columns="round", values="fine_tuning_steps")
    return table.astype(int)


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [("fedavg-ft", {"fedavg-ft.epochs": 3}), ("pfeddf", {"pfeddf.epochs": 3})],
)
def test_fine_tuning_takes_a_step_for_each_batch_of_its_epochs(strategy, changes, base, tmp_path):
    run = fedkd_flwr.run({**base, "strategy": strategy, **changes}, output_dir=tmp_path / "run")
    table, sizes = steps_by_round(run)
    for n, size in sizes.items():
        assert table.loc[n].tolist() == [batches(size, 16)] * 2
        assert fine_tuning_by_round(run).loc[n].tolist() == [3 * batches(size, 16)] * 2
    an_epoch = sum(batches(size, 16) for size in sizes.values())
    assert run.rounds["fine_tuning_steps"].tolist() == [3 * an_epoch] * 2
    # Two epochs of training, and three of fine-tuning for the last evaluation.
    assert run.summary["gradient_steps"] == 5 * an_epoch


def test_clients_that_were_not_sampled_are_fine_tuned_too(base, tmp_path):
    settings = {**base, "strategy": "fedavg-ft", "fedavg-ft.epochs": 1, "fraction-train": 0.5}
    run = fedkd_flwr.run({**settings, "evaluate-every": 2}, output_dir=tmp_path / "run")
    last = run.clients[run.clients["round"] == 2].set_index("partition_id")
    steps = {n: batches(size, 16) for n, size in last["num_examples"].items()}
    assert last["fine_tuning_steps"].to_dict() == steps
    assert last["gradient_steps"].notna().sum() == 2 < len(steps) == 4
    skipped, evaluated = run.round_rows
    assert "fine_tuning_steps" not in skipped
    trained = skipped["gradient_steps"] + evaluated["gradient_steps"]
    assert run.summary["gradient_steps"] == trained + sum(steps.values())
    assert compare(run).table["gradient_steps"].tolist() == [(trained + sum(steps.values())) / 4]


def test_per_fedavg_takes_two_steps_a_batch_and_one_before_an_evaluation(base, tmp_path):
    settings = {**base, "strategy": "per-fedavg"}
    adapted = fedkd_flwr.run(settings, output_dir=tmp_path / "adapted")
    table, sizes = steps_by_round(adapted)
    assert table[2].to_dict() == {n: 2 * batches(size, 16) for n, size in sizes.items()}
    assert adapted.rounds["fine_tuning_steps"].tolist() == [4, 4]
    assert adapted.summary["gradient_steps"] == table.to_numpy().sum() + 4
    an_epoch = fedkd_flwr.run(
        {**settings, "per-fedavg.adaptation": "epoch", "num-server-rounds": 1},
        output_dir=tmp_path / "epoch",
    )
    by_hand = {n: [batches(size, 16)] for n, size in sizes.items()}
    assert fine_tuning_by_round(an_epoch).T.to_dict("list") == by_hand
    as_received = fedkd_flwr.run(
        {**settings, "per-fedavg.evaluate-on": "global"}, output_dir=tmp_path / "global"
    )
    assert "fine_tuning_steps" not in as_received.rounds
    assert as_received.summary["gradient_steps"] == table.to_numpy().sum()


# ---- No step of a node mixes few samples ---------------------------------------------


SMALLEST = 10


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([[0, 1, 2], [3, 4], [5, 6, 7], [8]], [[0, 1, 2], [3, 4, 5, 6, 7, 8]]),
        ([[0], [0], [0], [1], [2], [3, 4, 5]], [[0, 0, 0, 1, 2], [3, 4, 5]]),
        ([[0, 1], [1]], []),
        ([[0, 1, 2], [3, 4, 5, 6]], [[0, 1, 2], [3, 4, 5, 6]]),
        ([], []),
    ],
)
def test_batches_with_few_different_samples_are_joined(batches, expected):
    found = joined([torch.tensor(batch) for batch in batches], smallest=3)
    assert [batch.tolist() for batch in found] == expected


def client_on(node_config, small, approved, strategy, **changes):
    silo = {"partition": "iid", "client-split": "60/20/20", "held-out-size": 60}
    silo |= {"max-samples": 460, "models": "lenet", "batch-size": 4, "public-size": 40}
    run_config = read_config({**small, **silo, "strategy": strategy, **changes}).flat()
    approve_run(run_config, approved)
    node_config = {"partition-id": 1, "epsilon-budget": math.inf, **node_config}
    node_config["approved-runs"] = str(approved)
    return build_client(Context(1, 1, node_config, RecordDict(), run_config))


@pytest.mark.parametrize("strategy", ["local", "moon", "pfedme", "per-fedavg", "scaffold"])
@pytest.mark.parametrize("changes", [{"local-epochs": 2}, {"local-iterations": 7}])
def test_private_batches_of_a_node(strategy, changes, small, tmp_path):
    guarded = {"trust-server": False, "client-split": "any", "min-class-count": SMALLEST}
    sizes = []
    for node in ({"trust-server": True}, guarded):
        client = client_on(node, small, tmp_path / "approved", strategy, **changes)
        sizes.append([len(batch[0]) for batch in client.private_batches(1)])
    assert max(sizes[0]) <= 5
    assert min(sizes[1]) >= SMALLEST


def test_fine_tuning_of_a_node(small, tmp_path, monkeypatch):
    node, changes = {"trust-server": False}, {"fine-tune-epochs": 1}
    client = client_on(node, small, tmp_path / "approved", "local", **changes)
    seen = []
    see = lambda model, loss, optimizer, batches: seen.extend(batches)  # noqa: E731
    monkeypatch.setattr("fedkd_flwr.clients.evaluating.train_on", see)
    client.session.evaluating.prepared({}, 1)
    assert seen and min(len(images) for images, _ in seen) >= SMALLEST
