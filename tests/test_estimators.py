"""Clients whose model is an estimator: which methods take them, and what their runs give."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import assert_refused, breaking, run_with
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import fedkd_flwr
from fedkd_flwr.config import methods_with
from fedkd_flwr.models.estimators import weighted_rows

ROOT = Path(__file__).parents[1]
FOREST = "sklearn.ensemble:RandomForestClassifier"
TAKING = methods_with("takes_estimators")


@pytest.fixture
def mixed(small):
    """A small run of networks and forests in turn."""
    options = "RandomForestClassifier = {n_estimators = 5}"
    return {**small, "models": f"mlp,{FOREST}", "estimator-options": options}


def test_the_page_lists_the_methods_that_take_estimators():
    text = (ROOT / "docs/how-to/custom-models.md").read_text()
    (listed,) = re.findall(r"`local`, (.*) and (`[\w-]+`) take", text)
    assert sorted(re.findall(r"`([\w-]+)`", " ".join(["`local`", *listed]))) == sorted(TAKING)


@pytest.mark.parametrize("strategy", TAKING)
def test_forests_and_networks_run_together(strategy, mixed, tmp_path):
    run = fedkd_flwr.run({**mixed, "strategy": strategy}, output_dir=tmp_path / "run")
    last = run.clients[run.clients["round"] == 2].set_index("partition_id")
    assert len(last) == 4
    assert (last.loc[[1, 3], "accuracy"] > 0.5).all()  # four classes each
    assert last.loc[[1, 3], "gradient_steps"].tolist() == [0, 0]
    assert (last.loc[[0, 2], "gradient_steps"] > 0).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "fedavg", "models": FOREST}, "fedavg needs networks"),
        ({"feature-width": 8}, "set feature-width to 0"),
        ({"dp-sgd-noise-multiplier": 1.0}, "set dp-sgd-noise-multiplier to 0"),
        ({"models": "sklearn.neighbors:KNeighborsClassifier"}, "takes no sample_weight"),
        ({"models": "sklearn.linear_model:RidgeClassifier"}, "has fit and no predict_proba"),
        ({"models": "sklearn.linear_model:SGDClassifier"}, "not available for loss='hinge'"),
        (
            {"models": "sklearn.ensemble:RandomForest"},
            "similar names there: .*RandomForestClassifier",
        ),
        ({"models": "sklearn.ensemble.RandomForestClassifier"}, f"did you mean {FOREST}"),
        ({"estimator-options": "RandomForestClassifier = {trees = 3}"}, "trees"),
        ({"estimator-options": "RandomForestClassifier = {max_depth = 0}"}, r"in the range \[1"),
        ({"estimator-options": "Forest = {trees = 3}"}, "which models lacks"),
        ({"estimator-options": "n_estimators = 3"}, "a table for each estimator"),
        ({"estimator-options": "n_estimators ="}, "it is not TOML"),
    ],
)
def test_what_estimators_cannot_have_is_refused(changes, message, mixed, tmp_path):
    settings = {**mixed, "strategy": "kt-pfl"}
    if "models" in changes:
        settings.pop("estimator-options")
    assert_refused(message, {**settings, **changes}, tmp_path / "run")


def test_soft_labels_become_weighted_rows():
    samples = torch.tensor([[1.0], [2.0]])
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [0.0, 0.0, 1.0]])
    rows, labels, weights = weighted_rows(samples, probabilities)
    assert rows.flatten().tolist() == [1, 1, 1, 2]
    assert labels.tolist() == [0, 1, 2, 2]
    torch.testing.assert_close(weights, torch.tensor([0.5, 0.3, 0.2, 1.0]))
    _, labels, weights = weighted_rows(samples, probabilities, top=2)
    assert labels.tolist() == [0, 1, 2]
    torch.testing.assert_close(weights, torch.tensor([0.625, 0.375, 1.0]))


def scaled(smoothing=1e-9):
    return make_pipeline(StandardScaler(), GaussianNB(var_smoothing=smoothing))


class Nearest:
    """Probabilities by distance to the weighted mean of each class, without scikit-learn."""

    def fit(self, samples, labels, sample_weight):
        self.means = np.stack(
            [
                np.average(samples[labels == k], axis=0, weights=sample_weight[labels == k])
                for k in np.unique(labels)
            ]
        )

    def predict_proba(self, samples):
        nearness = np.exp(-np.linalg.norm(samples[:, None] - self.means, axis=2))
        return nearness / nearness.sum(axis=1, keepdims=True)


class Answering(GaussianNB):
    """Returns something else than probabilities, or fails to fit, where there are many classes."""

    def __init__(self, answer="probabilities", classes=2):
        super().__init__()
        self.answer, self.classes = answer, classes

    def fit(self, samples, labels, sample_weight=None):
        if self.answer == "nothing" and len(np.unique(labels)) >= self.classes:
            raise RuntimeError("no memory\nis left")
        return super().fit(samples, labels, sample_weight)

    def predict_proba(self, samples):
        found = super().predict_proba(samples)
        if found.shape[1] < self.classes:
            return found
        return {"nan": found * np.nan, "scores": 3 * found, "narrow": found[:, 1:]}[self.answer]


class Reversed(GaussianNB):
    def predict_proba(self, samples):
        return super().predict_proba(samples)[:, ::-1]


class Unweighted(GaussianNB):
    def fit(self, samples, labels, **ignored):
        return super().fit(samples, labels)


class InPlace(GaussianNB):
    def predict_proba(self, samples):
        samples += 1
        return super().predict_proba(samples)


class Drawn(GaussianNB):
    def fit(self, samples, labels, sample_weight=None):
        noise = np.random.default_rng().normal(size=samples.shape)
        return super().fit(samples + noise, labels, sample_weight)


def test_pipelines_and_own_classes_are_passed_as_objects(small, tmp_path):
    models = [scaled(), Nearest, "mlp"]
    run = fedkd_flwr.run(
        {**small, "max-samples": 600, "strategy": "kt-pfl", "num-clients": 3, "models": models},
        output_dir=tmp_path / "run",
    )
    last = run.clients[run.clients["round"] == 2].set_index("partition_id")
    assert (last.loc[[0, 1], "accuracy"] > 0.5).all()
    assert last.loc[0, "model"].startswith("object:Pipeline_")


IMPUTING = make_pipeline(SimpleImputer(), RandomForestClassifier(5))
VOTING = VotingClassifier([("line", LogisticRegression()), ("bayes", GaussianNB())], voting="soft")


@pytest.mark.parametrize("model", [IMPUTING, VOTING], ids=["imputing", "voting"])
def test_estimators_made_of_others_are_sent_and_exported(model, small, tmp_path):
    settings = {**small, "strategy": "kt-pfl", "num-clients": 2, "models": model}
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "run", models_dir=str(tmp_path / "models"))
    last = run.clients[run.clients["round"] == 2].set_index("partition_id")
    assert (last["accuracy"] > 0.5).all()  # four classes each
    loaded = fedkd_flwr.load_model(tmp_path / "models/1.safetensors", model)
    data = fedkd_flwr.client_data(run, 1)
    right = loaded(data.test_images).argmax(dim=1) == data.test_labels
    assert right.float().mean() == pytest.approx(last.loc[1, "accuracy"])


BAD_ANSWERS = {
    "nan": r"returns the row \[nan",
    "scores": "its rows should be probabilities, which sum to one",
    "narrow": "a column for each class that fit has seen",
    "nothing": "no memory is left",
}


@pytest.mark.parametrize("answer", BAD_ANSWERS)
def test_what_is_no_probability_is_refused_before_the_run(answer, small, tmp_path):
    settings = {**small, "strategy": "kt-pfl", "models": [Answering(answer), "mlp"]}
    assert_refused(BAD_ANSWERS[answer], settings, tmp_path / "run")


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (Reversed(), "predict_proba should belong to the classes in ascending order"),
        (Unweighted(), "do not follow sample_weight, which distillation needs"),
        (SVC(probability=True), r"for SVC, CalibratedClassifierCV\(SVC\(\)\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:The `probability` parameter was deprecated")
def test_an_order_of_classes_and_weights_are_tried_before_the_run(model, sentence, small, tmp_path):
    assert_refused(sentence, {**small, "strategy": "kt-pfl", "models": model}, tmp_path / "run")


@pytest.mark.parametrize("model", [CalibratedClassifierCV(SVC()), GaussianNB(), FOREST])
def test_estimators_that_use_weights_are_taken(model, small, logged, tmp_path):
    settings = {**small, "strategy": "local", "num-clients": 2, "models": model}
    fedkd_flwr.run(settings, output_dir=tmp_path / "run", num_server_rounds=1)
    assert not [line for line in logged() if "two fits" in line]


def test_an_estimator_cannot_change_the_samples_of_a_client(small, tmp_path):
    settings = {**small, "strategy": "local", "models": InPlace()}
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    first, last = (run.clients[run.clients["round"] == n]["accuracy"].tolist() for n in (1, 2))
    assert first == last


def test_an_estimator_without_a_seed_is_warned_about(small, logged, tmp_path):
    settings = {**small, "strategy": "local", "models": Drawn()}
    fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    (line,) = [line for line in logged() if "two fits on the same samples differ" in line]
    assert "random_state" in line


@pytest.mark.parametrize("answer", BAD_ANSWERS)
def test_a_client_whose_estimator_fails_is_left_out(answer, small, tmp_path, caplog):
    settings = {**small, "strategy": "kt-pfl", "models": [Answering(answer, 4), "mlp"]}
    settings |= {"num-clients": 2, "on-client-error": "drop"}
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    assert run.rounds["replies"].tolist() == [1, 1]
    assert re.search(f"Dropped from this round: client 0, .*{BAD_ANSWERS[answer]}", caplog.text)


def stop(reply):
    raise KeyboardInterrupt


@pytest.mark.parametrize("strategy", ["kt-pfl", "perfed-ckt"])
def test_a_resumed_run_goes_on_to_the_same_numbers(strategy, mixed, tmp_path):
    settings = {**mixed, "strategy": strategy, "num-server-rounds": 3}
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")
    state = {"state-dir": str(tmp_path / "part/checkpoint/clients")}
    with pytest.raises(KeyboardInterrupt):
        run_with(breaking(stop, 2, only_round=3), settings, tmp_path / "part", **state)
    resumed = fedkd_flwr.resume(tmp_path / "part", allow_code="sklearn")
    columns = ["round", "partition_id", "accuracy", "loss"]
    pd.testing.assert_frame_equal(resumed.clients[columns], whole.clients[columns])


def test_a_safeguard_has_the_estimator_of_local_beside(mixed, tmp_path):
    local = fedkd_flwr.run({**mixed, "strategy": "local"}, output_dir=tmp_path / "local")
    settings = {**mixed, "strategy": "kt-pfl", "safeguard": "blend"}
    settings |= {"models-dir": str(tmp_path / "models")}
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    last, alone = (
        r.clients[r.clients["round"] == 2].set_index("partition_id") for r in (run, local)
    )
    assert last["private_accuracy"].to_dict() == alone["accuracy"].to_dict()
    assert (last["accuracy"] != last["private_accuracy"]).any()
    data = fedkd_flwr.client_data(run, 1)
    model = fedkd_flwr.load_model(tmp_path / "models" / "1.safetensors", RandomForestClassifier(2))
    right = model(data.test_images).argmax(dim=1) == data.test_labels
    assert right.float().mean() == pytest.approx(last.loc[1, "safeguarded_accuracy"])


def test_exported_estimators_predict_as_evaluated(mixed, tmp_path):
    folder = tmp_path / "models"
    settings = {**mixed, "strategy": "kt-pfl", "models-dir": str(folder), "num-clients": 2}
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    last = run.clients[run.clients["round"] == 2].set_index("partition_id")["accuracy"]
    data = fedkd_flwr.client_data(run, 1)
    model = fedkd_flwr.load_model(folder / "1.safetensors", RandomForestClassifier(2))
    assert isinstance(model.estimator, RandomForestClassifier)
    right = model(data.test_images).argmax(dim=1) == data.test_labels
    assert right.float().mean() == pytest.approx(last[1])
    np.testing.assert_allclose(fedkd_flwr.cross(run).accuracies.diagonal(), last)
    stored = fedkd_flwr.run(settings, output_dir=tmp_path / "stored", models_dir="")
    np.testing.assert_allclose(fedkd_flwr.cross(stored).accuracies.diagonal(), last)


def test_a_file_with_types_that_its_estimator_lacks_is_not_read(mixed, tmp_path):
    folder = tmp_path / "models"
    settings = {**mixed, "strategy": "local", "models": FOREST, "models-dir": str(folder)}
    fedkd_flwr.run(settings, output_dir=tmp_path / "run", num_server_rounds=1)
    file = folder / "1.safetensors"
    with pytest.raises(ValueError, match="pass its builder"):
        fedkd_flwr.load_model(file)
    with pytest.raises(ValueError, match=r"not trusted: sklearn.tree._tree.Tree"):
        fedkd_flwr.load_model(file, GaussianNB)
    tree = ["sklearn.tree._tree.Tree"]
    assert fedkd_flwr.load_model(file, GaussianNB, trusted=tree).estimator is not None
