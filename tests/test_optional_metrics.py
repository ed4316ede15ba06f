"""Calibration, AUC, F1, balanced accuracy and class counts, compared with values by hand."""

import numpy as np
import pytest
import torch

import fedkd_flwr
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.clients.policy import NodePolicy
from fedkd_flwr.config import ConfigError
from fedkd_flwr.training.optional_metrics import (
    area_under_curves,
    balanced_accuracy,
    calibration_error,
    macro_f1,
    measured,
)
from strategies.core.evaluations import read_evaluation
from strategies.core.metrics import check_class_counts, metric_name
from strategies.core.replies import InvalidReplyError

CORRECT, TOTAL = (metric_name("own", "test", name) for name in ("correct", "total"))

HELD = torch.tensor([True, True, False])


def test_calibration_error_by_hand():
    probabilities = torch.tensor([[0.95, 0.05], [0.05, 0.95], [0.42, 0.58], [0.35, 0.65]])
    labels = torch.tensor([0, 0, 1, 0])
    # Two answers at 0.95, one right; 0.58, right; 0.65, wrong: three bins.
    by_hand = 2 / 4 * abs(1 / 2 - 0.95) + 1 / 4 * (1 - 0.58) + 1 / 4 * 0.65
    assert calibration_error(probabilities, labels) == pytest.approx(by_hand, abs=1e-6)
    sure = torch.eye(2)
    assert calibration_error(sure, torch.tensor([0, 1])) == 0
    assert calibration_error(sure, torch.tensor([1, 0])) == 1


def test_area_under_curves_by_hand():
    scores = torch.tensor([[0.9, 0.1, 0], [0.6, 0.3, 0.1], [0.65, 0.2, 0.15], [0.1, 0.8, 0.1]])
    labels = torch.tensor([0, 0, 1, 1])
    # Class 0: 0.9 and 0.6 beat 0.1, one of them beats 0.65; class 1: 0.8 beats both, 0.2 one.
    assert area_under_curves(scores, labels) == pytest.approx((3 / 4 + 3 / 4) / 2)
    assert area_under_curves(scores, torch.zeros(4, dtype=torch.int64)) is None


def test_f1_and_balanced_accuracy_by_hand():
    labels = torch.tensor([0, 0, 0, 2, 2, 3])
    predictions = torch.tensor([0, 0, 2, 2, 1, 0])
    # Class 1 is predicted once and does not occur: it has no score.
    # Class 0: precision 2/3, recall 2/3. Class 2: precision 1/2, recall 1/2. Class 3: both 0.
    assert macro_f1(predictions, labels) == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert balanced_accuracy(predictions, labels) == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    # Always class 0: precision 1/2, recall 1.
    always = torch.zeros(6, dtype=torch.int64)
    assert macro_f1(always, labels) == pytest.approx((2 / 3 + 0 + 0) / 3)
    assert balanced_accuracy(always, labels) == pytest.approx(1 / 3)
    assert macro_f1(labels, labels) == balanced_accuracy(labels, labels) == 1


def occurring(counts):
    return counts > 0


def test_counts_tell_held_classes_from_others():
    logits = torch.eye(3)[[0, 1, 2, 0, 1]]
    labels = torch.tensor([0, 0, 2, 2, 2])
    numbers = measured(logits, labels, HELD, ("classes",), occurring)
    assert numbers == {
        "class-0-correct": 1, "class-0-total": 2, "class-2-correct": 1, "class-2-total": 3,
        "held-correct": 1, "held-total": 2,
    }  # fmt: skip
    check_class_counts({CORRECT: 2, TOTAL: 5, **numbers})
    assert measured(logits, labels, HELD, (), occurring) == {}
    diverged = measured(logits * torch.nan, labels, HELD, ("calibration", "auc"), occurring)
    assert diverged == {}


def test_small_classes_are_not_counted():
    labels = torch.tensor([0] * 20 + [1] * 4 + [2] * 30 + [3] * 7)
    logits = torch.eye(4)[labels]
    held = torch.ones(4, dtype=torch.bool)
    numbers = measured(logits, labels, held, ("classes",), NodePolicy().reported)
    assert numbers == {
        "class-0-correct": 20, "class-0-total": 20, "class-2-correct": 30, "class-2-total": 30,
        "held-correct": 50, "held-total": 50,
    }  # fmt: skip
    check_class_counts({CORRECT: 61, TOTAL: 61, **numbers})
    row = read_evaluation({CORRECT: 61, TOTAL: 61, **numbers}).row
    assert row["held_accuracy"] == 1
    assert "other_accuracy" not in row  # the hidden classes are held, too


@pytest.mark.parametrize(
    "changed",
    [
        {"class-0-correct": 3},
        {"class-0-total": 3},
        {"class-1-total": 0},
        {"class-1-correct": 0},
        {"class-0-correct": 0.5, "class-2-correct": 1.5},
        {"class-0-correct": -1, "class-2-correct": 3},
        {"held-total": 6},
        {"held-correct": 3},
        {"held-correct": 2, "held-total": 1},
        {CORRECT: 5},
        {"held-correct": 2, "held-total": 5, "class-2-correct": 0, "class-2-total": 0},
        {TOTAL: 9, "held-total": 6},
        {CORRECT: 4, "held-correct": 3, "held-total": 3},
    ],
)
def test_counts_that_do_not_add_up_are_refused(changed):
    correct = {
        CORRECT: 2, TOTAL: 5, "class-0-correct": 1, "class-0-total": 2, "class-2-correct": 1,
        "class-2-total": 3, "held-correct": 1, "held-total": 2,
    }  # fmt: skip
    with pytest.raises(InvalidReplyError, match="do not add up"):
        check_class_counts(correct | changed)


def test_a_run_reports_what_is_asked_and_compare_shows_it(small, tmp_path):
    small |= {"models": "mlp", "num-server-rounds": 1, "strategy": "local"}
    with pytest.raises(ConfigError, match="is not one of calibration, auc, f1"):
        fedkd_flwr.run({**small, "measures": "xyz"}, output_dir=tmp_path / "none")
    plain = fedkd_flwr.run(small, output_dir=tmp_path / "plain")
    settings = {**small, "measures": "calibration,auc,f1,balanced-accuracy,classes", "seed": 0}
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "measured")
    assert not any("calibration" in name or "class_" in name for name in plain.clients)
    rows = run.clients
    assert list(rows["accuracy"]) == list(plain.clients["accuracy"])
    totals = rows.filter(regex=r"^class_\d+_total$").sum(axis=1)
    assert list(totals) == list(rows["total"]) == list(rows["held_total"])
    assert rows["held_accuracy"].tolist() == rows["accuracy"].tolist()
    assert run.rounds["auc_mean"][0] == pytest.approx(rows["auc"].mean())
    by_class = [rows[f"class_{k}_correct"] / rows[f"class_{k}_total"] for k in range(10)]
    np.testing.assert_allclose(rows["balanced_accuracy"], np.nanmean(by_class, axis=0))
    assert run.rounds["f1_mean"][0] == pytest.approx(rows["f1"].mean())
    comparison = compare(run)
    table = comparison.table.loc["local"]
    assert table["calibration_error"] == pytest.approx(rows["calibration_error"].mean())
    assert table["nll"] == pytest.approx(rows["loss"].mean())
    assert "| ECE | AUC | F1 | balanced accuracy | classes held |" in comparison.to_markdown()
    assert "ECE" not in compare(plain).to_markdown()
