"""PersFL (Divi et al. 2021): choice of the teacher, grid, what is evaluated, and resuming."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import Witness, breaking, client_of, raising, replacing, reply_with, run_with, watched
from torch.nn import functional

import fedkd_flwr
from fedkd_flwr.clients import persfl
from fedkd_flwr.clients.persfl import Candidate, PersFLClient, PersFLGDClient
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.sweeps import read_sweep
from fedkd_flwr.training.loop import DivergedError, Evaluation
from fedkd_flwr.training.losses import kl_from_teacher, kl_to_teacher
from strategies.core.replies import ClientInfo, InvalidReplyError, TooFewRepliesError
from strategies.persfl import DIVERGED, PAIRS, PERSONALIZE, PersFLSettings, check_pairs

NORMED = "tests.disclosure:NormedNet"


@pytest.fixture
def small(small):
    """Enough validation samples that clients choose differently."""
    size = {"max-samples": 600}
    return {**small, **size, "strategy": "persfl", "models": "mlp", "momentum": 0.0}


# ---- Stage 1: the teacher ------------------------------------------------------------


def teacher_after(losses, small, monkeypatch, **changes):
    """Show a client one global model a round, whose weights are the round's number."""
    client = client_of(small, **changes)
    script = iter(losses)

    def evaluated(model, images, labels):
        assert images is client.data.validation_images and labels is client.data.validation_labels
        return Evaluation(0, 1, next(script))

    monkeypatch.setattr(persfl, "evaluate", evaluated)
    for server_round in range(len(losses)):
        with torch.no_grad():
            for parameter in client.model.parameters():
                parameter.fill_(server_round)
        client.consider_teacher(server_round)
    teacher = client.state.teacher
    (held,) = {float(value) for tensor in teacher.values() for value in tensor.flatten()}
    chosen = client.state.teacher_choice["round"]
    assert held == chosen
    return chosen


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ([2.3, 0.9, 0.7, 1.4], 2),
        ([2.3, 0.7, 0.7, 0.7], 1),  # the earlier of equals
        ([2.3, 0.9, 0.7, 0.5], 3),  # the last is a candidate
        ([0.1, 0.9, 0.7, 0.5], 0),  # and so is the first
        ([math.nan, 0.9, 1.4, math.nan], 1),  # a model that overflows is no teacher
        ([math.inf, math.nan, 3.0, 4.0], 2),
    ],
)
def test_the_teacher_is_the_first_with_the_lowest_validation_loss(
    losses, chosen, small, monkeypatch
):
    assert teacher_after(losses, small, monkeypatch) == chosen


def test_the_last_model_is_the_teacher_where_asked(small, monkeypatch):
    losses = [2.3, 0.9, 0.7, 1.4]
    assert teacher_after(losses, small, monkeypatch, **{"persfl.teacher": "last"}) == 3


# ---- Stage 2: the grid ---------------------------------------------------------------


def test_the_grid_skips_temperatures_where_they_have_no_effect():
    assert PersFLSettings(imitation="0,0.5", temperatures="1,5").grid() == [
        (0.0, 1.0),
        (0.5, 1.0),
        (0.5, 5.0),
    ]
    assert len(PersFLSettings().grid()) == 1 + 4 * 3


@pytest.mark.parametrize(
    ("epochs", "every", "stretches"),
    [(10, 0, [10]), (10, 1, [1] * 10), (10, 4, [4, 4, 2]), (3, 5, [3])],
)
def test_epochs_lie_between_one_validation_and_the_next(epochs, every, stretches):
    settings = PersFLSettings(distillation_epochs=epochs, validate_every=every)
    assert settings.stretches() == stretches


def test_the_best_epoch_is_kept_if_each_is_validated(small, monkeypatch):
    """Training is the same; of its three epochs the second is the best on validation data."""
    three = {"persfl.distillation-epochs": 3}
    last, watched = (
        client_of(small, **three, **changes) for changes in ({}, {"persfl.validate-every": 1})
    )
    teacher = last.session.new_model()
    logits = teacher(last.data.train_images).detach()
    for client in (last, watched):
        client.model.load_state_dict(teacher.state_dict())
    found = last.distilled(logits, 0.5, 5.0, server_round=2)
    seen, losses = [], iter([0.9, 0.7, 0.8])
    measured = watched.candidate

    def candidate():
        seen.append(measured())
        seen[-1] = replace(seen[-1], validation=Evaluation(5, 10, next(losses)))
        return seen[-1]

    monkeypatch.setattr(watched, "candidate", candidate)
    assert watched.distilled(logits, 0.5, 5.0, server_round=2) is seen[1]
    for name, value in found.weights.items():
        assert torch.equal(value, seen[2].weights[name])
        assert name.endswith("tracked") or not torch.equal(value, seen[1].weights[name])


@pytest.mark.parametrize("strategy", ["persfl", "persfl-gd"])
@pytest.mark.parametrize(
    ("imitation", "models", "stays"),
    [("1", "mlp", True), ("0.5", "mlp", False), ("1", NORMED, False)],
)
def test_lambda_one_leaves_the_student_at_the_teacher(strategy, imitation, models, stays, small):
    """The teacher's soft labels are the student's own predictions: nothing to learn."""
    changes = {"strategy": strategy, "models": models, "persfl.imitation": imitation}
    client = client_of(small, **changes)
    client.consider_teacher(0)
    counts = client.personalize(server_round=2)
    weights = client.model.state_dict().items()
    assert all(torch.equal(value, client.state.teacher[name]) for name, value in weights) == stays
    assert (client.session.gradient_steps.taken == 0) == stays
    if stays:
        assert client.state.choice["temperature"] == 1 and (counts == counts[0]).all()


def test_persfl_gd_takes_the_cross_entropy(small):
    client = client_of(small, strategy="persfl-gd")
    assert isinstance(client, PersFLGDClient)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 10, generator=generator, requires_grad=True)
    teacher = torch.softmax(torch.randn(6, 10, generator=generator), dim=1)
    cross_entropy = client.soft_loss(logits, teacher, 5.0)
    by_hand = -(teacher * functional.log_softmax(logits / 5.0, dim=1)).sum(dim=1).mean()
    torch.testing.assert_close(cross_entropy, by_hand)
    divergence = client_of(small).soft_loss(logits, teacher, 5.0)
    entropy = -(teacher * teacher.log()).sum(dim=1).mean()
    torch.testing.assert_close(cross_entropy - divergence, entropy)
    # So both have one gradient, and lead to one model.
    torch.testing.assert_close(
        *(torch.autograd.grad(loss, logits)[0] for loss in (cross_entropy, divergence))
    )


def test_the_divergence_is_reversed_if_so_set(small):
    client = client_of(small, **{"persfl.divergence": "reverse"})
    assert client.soft_loss is kl_from_teacher
    assert client_of(small).soft_loss is kl_to_teacher
    with pytest.raises(ConfigError, match=r"persfl.divergence = 'both': it should be"):
        read_config({**small, "persfl.divergence": "both"})


def test_every_pair_starts_from_the_teacher(small, monkeypatch):
    client = client_of(small, **{"persfl.imitation": "0.5,0.5", "persfl.temperatures": "1"})
    client.consider_teacher(0)
    calls = watched(monkeypatch, PersFLClient, "candidate")
    client.personalize(server_round=2)
    first, second = (candidate.weights for _, candidate in calls)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def kept_pair(results, small, monkeypatch):
    """Personalize with scripted validation results, one for each pair of the grid."""
    grid = {"persfl.imitation": "0.25,0.5,0.75", "persfl.temperatures": "1"}
    client = client_of(small, **grid)
    client.consider_teacher(0)
    script = dict(zip((0.25, 0.5, 0.75), results, strict=True))

    def distilled(logits, imitation, temperature, server_round):
        if script[imitation] is None:
            raise DivergedError("training diverged")
        weights = {k: torch.full_like(v, imitation) for k, v in client.model.state_dict().items()}
        accuracy, loss = script[imitation]
        validation = Evaluation(round(10 * accuracy), 10, loss)
        # The worse a pair is on validation data, the better on test data.
        test = Evaluation(round(100 * (1 - accuracy)), 100, loss)
        return Candidate(validation, test, weights)

    monkeypatch.setattr(client, "distilled", distilled)
    counts = client.personalize(server_round=2)
    expected = [
        [DIVERGED] * 2 if pair is None else [round(10 * pair[0]), round(100 * (1 - pair[0]))]
        for pair in results
    ]
    assert counts.tolist() == expected
    choice = client.state.choice
    kept = client.state.personalized
    assert all((value == choice["lambda"]).all() for value in kept.values())
    return choice["lambda"]


@pytest.mark.parametrize(
    ("results", "kept"),
    [
        ([(0.5, 1.0), (0.9, 2.0), (0.7, 0.1)], 0.5),  # accuracy comes first,
        ([(0.9, 1.0), (0.5, 0.1), (0.9, 0.7)], 0.75),  # then the loss,
        ([(0.9, 1.0), (0.9, 1.0), (0.9, 1.0)], 0.25),  # then the order of the grid
        ([None, (0.2, 3.0), None], 0.5),  # a pair that diverged is left out
    ],
)
def test_the_pair_with_the_best_validation_result_is_kept(results, kept, small, monkeypatch):
    assert kept_pair(results, small, monkeypatch) == kept


def test_stage_2_fails_if_all_pairs_diverge(small, monkeypatch):
    with pytest.raises(DivergedError, match="all pairs diverged"):
        kept_pair([None, None, None], small, monkeypatch)


# ---- Whole runs ----------------------------------------------------------------------


@pytest.mark.parametrize("models", ["mlp", NORMED])
def test_every_pair_of_every_client_is_in_the_table(models, small, tmp_path):
    """With batch normalization too, pairs are compared by the statistics of an evaluation."""
    small |= {"models": models}
    finished = fedkd_flwr.run(small, output_dir=tmp_path / "run")
    pairs, grid = finished.table(PAIRS), read_config(small).settings.grid()
    assert (pairs["round"] == 2).all()
    assert list(pairs["partition_id"]) == [n for n in range(4) for _ in grid]
    assert list(zip(pairs["lambda"], pairs["temperature"], strict=True)) == grid * 4
    last = finished.clients[finished.clients["round"] == 2].set_index("partition_id")
    for n, own in pairs.groupby("partition_id"):
        kept = (own["lambda"] == last["lambda"][n]) & (own["temperature"] == last["temperature"][n])
        (row,) = own[kept].to_dict("records")
        assert row["accuracy"] == last["accuracy"][n]
        assert row["validation_accuracy"] == last["validation_accuracy"][n]
        assert row["validation_accuracy"] == own["validation_accuracy"].max()
    assert pairs["accuracy"].nunique() > 4
    assert finished.table("nothing").empty


KNOWN = ClientInfo(3, node_id=30, model="mlp", num_examples=9, test_size=20, validation_size=4)


@pytest.mark.parametrize(
    ("counts", "is_possible"),
    [
        ([[4, 20], [0, 0]], True),
        ([[DIVERGED, DIVERGED], [1, 1]], True),
        ([[5, 20], [0, 0]], False),
        ([[4, 21], [0, 0]], False),
        ([[4, 20], [DIVERGED, 0]], False),
        ([[4, 20], [-2, -2]], False),
    ],
)
def test_impossible_counts_of_pairs_are_refused(counts, is_possible):
    reply = reply_with({PAIRS: np.array(counts, dtype=np.int32)})
    if is_possible:
        check_pairs(reply, KNOWN)
        return
    with pytest.raises(InvalidReplyError, match="4 validation and 20 test samples"):
        check_pairs(reply, KNOWN)


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (np.full((3, 2), 10**6, dtype=np.int32), "has impossible counts in pairs"),
        (np.zeros((4, 2), dtype=np.int32), r"pairs has shape \(4, 2\)"),
        (np.zeros((3, 2), dtype=np.float32), "pairs"),
    ],
)
def test_a_client_with_invalid_pairs_is_left_out_of_the_table(lie, reason, small, tmp_path):
    app = breaking(replacing(**{PAIRS: lie}), 1, PERSONALIZE)
    finished, _ = run_with(app, small, tmp_path / "run", **{"num-server-rounds": 1})
    assert sorted(set(finished.table(PAIRS)["partition_id"])) == [0, 2, 3]
    last = finished.clients.set_index("partition_id")
    assert re.search(reason, last["failure"][1])
    assert last["accuracy"].notna().all()


def test_the_personalized_model_is_evaluated_in_the_last_round(small, tmp_path):
    small |= {"persfl.distillation-epochs": 5}
    witness = Witness()
    finished, grid = run_with(witness, small, tmp_path / "run")
    # All have a global model in the first round, and none in the last.
    for n in range(4):
        assert witness.down[1, "evaluate", n]
        assert witness.down[2, "evaluate", n] == {}
    last = finished.clients[finished.clients["round"] == 2].set_index("partition_id")
    for n, context in grid.contexts.items():
        client = client_of(small, context=context)
        client.model.load_state_dict(client.state.personalized)
        assert client.test_accuracy() == last.loc[n, "accuracy"]
    assert (last["accuracy"] != last["global_accuracy"]).any()
    assert (finished.summary["last_round"]["accuracy_mean"]) == last["accuracy"].mean()


def test_a_client_that_fails_in_stage_2_falls_back_to_its_teacher(small, tmp_path):
    app = breaking(raising("power cut"), 1, PERSONALIZE)
    finished, grid = run_with(app, small, tmp_path / "run")
    last = finished.clients[finished.clients["round"] == 2].set_index("partition_id")
    assert "power cut" in last.loc[1, "failure"]
    assert last["lambda"].isna().tolist() == [False, True, False, False]
    assert last["teacher_round"].notna().all()
    client = client_of(small, context=grid.contexts[1])
    client.model.load_state_dict(client.state.teacher)
    assert client.test_accuracy() == last.loc[1, "accuracy"]


def test_a_client_that_never_took_part_is_evaluated_with_its_first_model(small):
    client = client_of(small)
    expected = client_of(small).session.new_model().state_dict()
    with torch.no_grad():
        for parameter in client.model.parameters():
            parameter.fill_(3.0)  # as another client left it
    assert client.evaluated({}, server_round=2).metrics == {}
    for name, value in client.model.state_dict().items():
        assert torch.equal(value, expected[name])


# ---- The sweeps of PersFL's tables have the paper's rounds ---------------------------


SWEEPS = Path(__file__).parent.parent / "results" / "sweeps"
ROUNDS = {
    "fedavg": (100, 50, 100),
    "persfl": (100, 25, 100),
    "fedper": (100, 50, 100),
    "pfedme": (800, 800, 800),
    "per-fedavg": (800, 800, 800),
}
"""The paper's Table 7, for DS-1 to DS-3."""


def test_sweeps_have_the_papers_rounds():
    partitions = ("k-classes", "dirichlet", "lognormal-two-classes")
    for name, configuration in read_sweep(SWEEPS / "persfl-mnist.toml").items():
        method = name.split("-seed")[0].replace("-gd", "")
        if method == "local":  # it is in none of the paper's tables
            continue
        rounds = configuration.run.plan.num_server_rounds
        if method in ("pfedme", "per-fedavg") and rounds == 100:
            continue  # these two at FedAvg's rounds, which the paper does not have
        position = partitions.index(configuration.run.data.partition)
        assert rounds == ROUNDS[method][position]


# ---- Runs that are interrupted, stopped or extended in stage 2 -----------------------


GRID = {"persfl.imitation": "0,0.5,1", "persfl.temperatures": "1,5"}


@pytest.fixture
def grid(small):
    return {**small, "max-samples": 300, **GRID}


def cut_run(settings, folder, monkeypatch, cut_at):
    """Start a run, and simulate a power failure after some pairs of its second stage."""
    original, tried = PersFLClient.distilled, []

    def distilled(*arguments):
        if len(tried) == cut_at:
            raise KeyboardInterrupt
        tried.append(arguments)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PersFLClient, "distilled", distilled)
        with pytest.raises(KeyboardInterrupt):
            fedkd_flwr.run(settings, output_dir=folder)


def assert_same(run, whole):
    pd.testing.assert_frame_equal(run.table(PAIRS), whole.table(PAIRS))
    for column in ("loss", "accuracy", "lambda", "temperature", "teacher_round"):
        assert list(run.clients[column].dropna()) == list(whole.clients[column].dropna())


def test_a_run_interrupted_in_stage_2_repeats_it(grid, tmp_path, monkeypatch):
    whole = fedkd_flwr.run(grid, output_dir=tmp_path / "whole")
    cut_run(grid, tmp_path / "cut", monkeypatch, cut_at=7)
    assert_same(fedkd_flwr.resume(tmp_path / "cut"), whole)


# ---- What stage 2 leaves where it fails ------------------------------------------------


def failing_at(monkeypatch, *clients):
    original = PersFLClient.distilled

    def distilled(client, logits, imitation, temperature, server_round):
        if client.partition_id in clients:
            raise RuntimeError("out of memory")
        return original(client, logits, imitation, temperature, server_round)

    monkeypatch.setattr(PersFLClient, "distilled", distilled)


def test_a_run_stopped_by_too_few_replies_in_stage_2_can_continue(grid, tmp_path, monkeypatch):
    grid |= {"min-replies": 3, "on-client-error": "drop"}
    whole = fedkd_flwr.run(grid, output_dir=tmp_path / "whole")
    with monkeypatch.context() as patch:
        failing_at(patch, 0, 2)
        reason = r"2 valid replies and min-replies is 3 \(client 0: .*out of memory.*; client 2"
        with pytest.raises(TooFewRepliesError, match=reason):
            fedkd_flwr.run(grid, output_dir=tmp_path / "cut")
    assert_same(fedkd_flwr.resume(tmp_path / "cut"), whole)


def test_an_extended_run_discards_its_personalized_models(grid, tmp_path, monkeypatch):
    """A client that fails in the new second stage is evaluated with its teacher."""
    grid |= {"on-client-error": "drop"}
    fedkd_flwr.run(grid, output_dir=tmp_path / "run")
    failing_at(monkeypatch, 1)
    grown = fedkd_flwr.resume(tmp_path / "run", num_server_rounds=3)
    whole = fedkd_flwr.run({**grid, "num-server-rounds": 3}, output_dir=tmp_path / "whole")
    rows = [run.clients[run.clients["round"] == 3] for run in (grown, whole)]
    assert list(rows[0]["accuracy"]) == list(rows[1]["accuracy"])
    assert rows[0]["lambda"].isna().tolist() == [False, True, False, False]


def test_more_rounds_are_refused_where_the_last_one_gave_candidates_to_all(grid, tmp_path):
    """An extended run would keep them; with the last teacher, or all clients, there are none."""
    sampled = {**grid, "fraction-train": 0.5, "num-server-rounds": 1}
    fedkd_flwr.run(sampled, output_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match="With fraction-train, the results of persfl depend"):
        fedkd_flwr.resume(tmp_path / "run", num_server_rounds=2)
    sampled |= {"persfl.teacher": "last"}
    fedkd_flwr.run(sampled, output_dir=tmp_path / "last")
    grown = fedkd_flwr.resume(tmp_path / "last", num_server_rounds=2)
    whole = fedkd_flwr.run({**sampled, "num-server-rounds": 2}, output_dir=tmp_path / "whole")
    rows = [run.clients[run.clients["round"] == 2] for run in (grown, whole)]
    assert list(rows[0]["loss"]) == list(rows[1]["loss"])
