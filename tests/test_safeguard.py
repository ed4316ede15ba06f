"""The safeguard: a private model beside the method's, which equals a run of `local`."""

import math

import pandas as pd
import pytest
import torch
from scipy import stats
from torch.nn import functional

import fedkd_flwr
from fedkd_flwr import compare
from fedkd_flwr.analysis.safeguard_criterion import of_clients
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.training.blending import (
    ONLY_METHOD,
    ONLY_PRIVATE,
    TEMPERATURES,
    Blend,
    chosen,
    mixed,
)
from strategies.core.metrics import metrics_of
from strategies.core.replies import InvalidReplyError
from strategies.core.rounds import NEW_CLIENTS
from strategies.core.safeguard import GUARDED, SAFEGUARD_METRICS, check_safeguarded
from tests.helpers import Witness, run_with


@pytest.fixture
def base(small):
    return {**small, "models": "mlp", "num-clients": 3, "max-samples": 400}


def by_client(run, name):
    last = run.clients[run.clients["round"] == run.clients["round"].max()]
    return last.set_index("partition_id")[name].to_dict()


# ---- The private model is that of `local` --------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ("kt-pfl", {}),
        ("fedavg", {"fraction-train": 0.67}),
        ("persfl", {}),
        ("fedproto", {"cohort": "on"}),
        ("fml", {"fine-tune-epochs": 1, "learning-rate-schedule": "cosine"}),
    ],
)
def test_the_private_model_equals_a_run_of_local(strategy, changes, base, tmp_path):
    settings = {**base, **changes}
    local = fedkd_flwr.run({**settings, "strategy": "local"}, output_dir=tmp_path / "local")
    guarded = {**settings, "strategy": strategy, "safeguard": "blend"}
    run = fedkd_flwr.run(guarded, output_dir=tmp_path / "run")
    assert by_client(run, "private_accuracy") == by_client(local, "accuracy")
    for n, weight in by_client(run, "safeguard_weight").items():
        if weight in (0, 1):
            whose = "private_accuracy" if weight == 0 else "accuracy"
            assert by_client(run, "safeguarded_accuracy")[n] == by_client(run, whose)[n]


def test_the_method_is_what_it_is_without_a_safeguard(base, tmp_path):
    plain = fedkd_flwr.run({**base, "strategy": "kt-pfl"}, output_dir=tmp_path / "plain")
    guarded = {**base, "strategy": "kt-pfl", "safeguard": "choose"}
    run = fedkd_flwr.run(guarded, output_dir=tmp_path / "run")
    for name in ("accuracy", "loss", "validation_accuracy", "train_loss"):
        assert by_client(run, name) == by_client(plain, name)
    assert set(by_client(run, "safeguard_weight").values()) <= {0.0, 1.0}
    # The private model takes as many steps as `local` does: those of the private batches.
    local = fedkd_flwr.run({**base, "strategy": "local"}, output_dir=tmp_path / "local")
    steps = [by_client(each, "gradient_steps") for each in (run, plain, local)]
    assert steps[0] == {n: steps[1][n] + steps[2][n] for n in steps[1]}


def test_the_private_model_has_settings_of_its_own(base, tmp_path):
    local = {**base, "strategy": "local", "learning-rate": 0.1, "momentum": 0.5}
    local = fedkd_flwr.run(local, output_dir=tmp_path / "local")
    own = {"safeguard": "blend", "safeguard-learning-rate": 0.1, "safeguard-momentum": 0.5}
    run = fedkd_flwr.run({**base, "strategy": "fedavg", **own}, output_dir=tmp_path / "run")
    assert by_client(run, "private_accuracy") == by_client(local, "accuracy")


# ---- The weight ----------------------------------------------------------------------------


def test_a_blend_is_a_sum_of_logits():
    method, private = torch.randn(7, 4), torch.randn(7, 4)
    blend = Blend(0.5, 0.25, 2.0)
    torch.testing.assert_close(blend(method, private), 0.25 * method + 2 * private)
    assert torch.equal(ONLY_METHOD(method, private), method)
    # A model that has diverged does not spoil the private one.
    assert torch.equal(ONLY_PRIVATE(method * math.nan, private), private)


def predictions(right, images=60, classes=3):
    """Return logits that get the first images right, and the labels."""
    labels = torch.arange(images) % classes
    found = torch.where(torch.arange(images) < right, labels, (labels + 1) % classes)
    return 3 * torch.eye(classes)[found], labels


def test_the_method_is_chosen_where_it_leads_clearly():
    best, labels = predictions(60)
    # One image is no lead of half a standard deviation; ties go to the private model.
    for right, weight in ((60, 0), (59, 1), (40, 1)):
        assert chosen(best, predictions(right)[0], labels).weight == weight
    assert chosen(predictions(59)[0], best, labels).weight == 0


def test_the_coefficients_of_a_blend_are_the_most_probable():
    draws = torch.Generator().manual_seed(0)
    method, private = torch.randn(2, 40, 3, generator=draws)
    labels = (method + private + torch.randn(40, 3, generator=draws)).argmax(dim=1)
    found = mixed(method, private, labels)
    calibrated = [
        logits / min(TEMPERATURES, key=lambda t: functional.cross_entropy(logits / t, labels))
        for logits in (method, private)
    ]
    scales = torch.linspace(0, 3, 61)
    scores = [
        (
            functional.cross_entropy(x * calibrated[0] + y * calibrated[1], labels, reduction="sum")
            + x**2 / (2 * 0.5**2)
            + (y - 1) ** 2 / 2
        )
        for x in scales
        for y in scales
    ]
    best = int(torch.stack(scores).argmin())
    x, y = float(scales[best // 61]), float(scales[best % 61])
    assert found.weight == pytest.approx(x / (x + y), abs=0.02)
    assert 0.2 < found.weight < 0.8
    # Equal models say nothing, so the prior decides for the private one.
    assert mixed(private, private, labels).weight < 0.4
    assert mixed(torch.full_like(method, math.nan), private, labels) == ONLY_PRIVATE


def test_a_resumed_run_is_that_of_one_go(base, tmp_path):
    guarded = {**base, "strategy": "kt-pfl", "safeguard": "blend"}
    whole = fedkd_flwr.run(guarded, output_dir=tmp_path / "whole")
    stopped = {**guarded, "num-server-rounds": 1, "state-dir": str(tmp_path / "state")}
    fedkd_flwr.run(stopped, output_dir=tmp_path / "run")
    run = fedkd_flwr.resume(tmp_path / "run", num_server_rounds=2)
    for name in ("accuracy", "private_accuracy", "safeguarded_accuracy", "safeguard_weight"):
        assert by_client(run, name) == by_client(whole, name)


def test_private_models_of_new_clients_are_those_of_local(base, tmp_path):
    settings = {**base, "num-clients": 4, "new-clients": 0.25}
    local = fedkd_flwr.run({**settings, "strategy": "local"}, output_dir=tmp_path / "local")
    guarded = {**settings, "strategy": "kt-pfl", "safeguard": "blend"}
    run = fedkd_flwr.run(guarded, output_dir=tmp_path / "run")
    (alone,), (row,) = (r.table(NEW_CLIENTS).to_dict("records") for r in (local, run))
    assert row["private_correct"] == alone["correct"]


def test_nodes_with_flowers_records_give_the_same_numbers(base, tmp_path):
    guarded = {**base, "strategy": "kt-pfl", "safeguard": "blend"}
    together = fedkd_flwr.run(guarded, output_dir=tmp_path / "together")
    witness = Witness()
    run, _ = run_with(witness, guarded, tmp_path / "nodes")
    for name in ("accuracy", "private_accuracy", "safeguarded_accuracy", "safeguard_weight"):
        assert by_client(run, name) == by_client(together, name)
    plain = Witness()
    run_with(plain, {**guarded, "safeguard": "none"}, tmp_path / "plain")
    # The private model changes no array of a message, and no message without a safeguard.
    assert {k: set(v) for k, v in witness.up.items()} == {k: set(v) for k, v in plain.up.items()}
    further = {metric.name for metric in (*SAFEGUARD_METRICS, *metrics_of(GUARDED))}
    trained = [key for key in witness.metrics if key[1] == "train"]
    assert len(trained) == 6
    for key in trained:
        assert witness.metrics[key].keys() - plain.metrics[key].keys() == further


# ---- Server, settings, memory and comparisons ----------------------------------------------


OWN, PRIVATE, DEPLOYED = (f"{who}-test-correct" for who in ("own", "private", "deployed"))
SAFE = {"own-test-total": 10, OWN: 6, PRIVATE: 7, DEPLOYED: 8}
SAFE |= {"safeguarded-lost": 1, "method-lost": 2, "safeguard-weight": 0.5}


@pytest.mark.parametrize(
    "change",
    [
        {"safeguarded-lost": 8},
        {"safeguarded-lost": 0, DEPLOYED: 4},
        {"method-lost": 0, OWN: 6},
        {"method-lost": 2.5},
    ],
)
def test_counts_that_contradict_each_other_are_refused(change):
    check_safeguarded(SAFE)
    with pytest.raises(InvalidReplyError, match="contradict each other"):
        check_safeguarded({**SAFE, **change})


@pytest.mark.parametrize("missing", [OWN, PRIVATE, DEPLOYED, "method-lost", "safeguard-weight"])
def test_numbers_of_a_safeguard_belong_together(missing):
    with pytest.raises(InvalidReplyError, match=f"not {missing}"):
        check_safeguarded({name: SAFE[name] for name in SAFE if name != missing})


def test_what_a_safeguard_cannot_do_is_refused(small):
    with pytest.raises(ConfigError, match="safeguard needs validation data; set"):
        read_config({**small, "safeguard": "blend", "client-split": "80/0/20"})
    noise = {"strategy": "fedavg", "models": "mlp", "dp-sgd-noise-multiplier": 1.0}
    with pytest.raises(ConfigError, match="set safeguard = none"):
        read_config({**small, **noise, "safeguard": "blend"})


def guarded(part, seed, client, method, safeguarded, label="fedavg"):
    """Return a row of a client with 1,000 test images, 500 of them right by its private model."""
    return {
        "data": part, "label": label, "seed": seed, "partition_id": client,
        "private_accuracy": 0.5, "safeguard_weight": 0.25,
        "method_gain": method, "safeguarded_gain": safeguarded,
        "harmed": safeguarded < -0.1,
    }  # fmt: skip


def test_the_criterion_has_two_sides():
    gains = {1: (0.04, 0.03), 2: (0.06, 0.05), 3: (0.08, 0.04)}
    rows = [guarded("a", seed, 0, *both) for seed, both in gains.items()]
    rows += [guarded("a", seed, 0, -0.2, 0.0, "fedprox") for seed in gains]
    rows[-1]["harmed"] = True
    found = of_clients(pd.DataFrame(rows))
    assert found.gaining == [("a", "fedavg")]
    # A method that loses alone has no gain to keep.
    assert found.kept().value == pytest.approx(0.12 / 0.18)
    assert found.losing(5, "method").value == 0.5
    # A loss of exactly 20 points is none of more than 20.
    assert found.losing(20, "method").value == found.losing(0).value == 0
    shown = found.harmed()
    # Seeds have shares of 0, 0 and 1/2; the jackknife of a mean is Student's interval.
    low, high = stats.t.interval(0.95, 2, 1 / 6, stats.sem([0, 0, 0.5]))
    assert (shown.value, shown.low) == (pytest.approx(1 / 6), 0) and low < 0
    assert shown.high == pytest.approx(high)
    notes = " ".join(found.notes)
    assert "at most 2%, missed" in notes and "at least 80%, missed" in notes
    assert math.isnan(of_clients(pd.DataFrame(rows[:1])).harmed().low)


def test_a_safeguard_that_keeps_all_gains_meets_the_criterion():
    rows = [guarded("a", seed, n, 0.02, 0.03) for seed in (1, 2) for n in range(100)]
    notes = " ".join(of_clients(pd.DataFrame(rows)).notes)
    # None of 200: 1 - 0.025 ** (1 / 200).
    assert "upper bound is 1.8% (aim: at most 2%, met)" in notes
    assert "keep 150.0% of the mean gain, over 1 of 1 methods" in notes


def test_a_comparison_shows_both(base, tmp_path):
    fedkd_flwr.run({**base, "strategy": "local"}, output_dir=tmp_path / "local")
    run = fedkd_flwr.run(
        {**base, "strategy": "fedavg", "safeguard": "blend"}, output_dir=tmp_path / "run"
    )
    compared = compare(tmp_path)
    row = compared.table.loc["fedavg"]
    assert row["safeguarded_accuracy"] == pytest.approx(
        run.round_rows[-1]["safeguarded_accuracy_mean"]
    )
    assert row["private_accuracy"] == pytest.approx(compared.table.loc["local", "accuracy"])
    own = compared.clients[compared.clients["method"] == "fedavg"]
    gain = (own["safeguarded_won"] - own["safeguarded_lost"]) / own["test_images"]
    assert (own["private_accuracy"] + gain).to_numpy() == pytest.approx(
        own["safeguarded_accuracy"].to_numpy()
    )
    text = compared.to_markdown()
    assert "safeguarded" in text and "weight of method" in text
    # Counts of each pair give the accuracy of the method alone too.
    gain = (own["method_won"] - own["method_lost"]) / own["test_images"]
    assert gain.to_numpy() == pytest.approx(own["gain"].to_numpy())
    assert "below private, shown" in text and "Safeguarded: each client weighs" in text
    assert "lose more than 5 points to their private model" in text
