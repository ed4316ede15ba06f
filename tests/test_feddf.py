"""FedDF (Lin et al. 2020) and pFedDF: means by architecture, and what the ensemble teaches them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from by_hand import TWO_CLIENTS, logits, trained, training_data, witnessed
from flwr.app import Context, RecordDict
from helpers import breaking, client_of, raising
from torch.nn import functional

from fedkd_flwr.config import read_config
from fedkd_flwr.data.public import public_subset
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.engines.in_process import InProcessGrid
from fedkd_flwr.server_app import main
from fedkd_flwr.training.server_models import RunModels
from strategies.core.plan import RunPlan
from strategies.core.probabilities import softmax
from strategies.core.replies import ClientInfo, Reply
from strategies.feddf import FedDF, FedDFSettings, FedDFState, ensemble_logits


@pytest.fixture
def small(small):
    return {**small, "strategy": "feddf"}


@pytest.fixture
def two(small):
    return {**small, **TWO_CLIENTS}


def public_samples(flat, server_round):
    pool = client_of(flat).data.public_images.flatten(1)
    return pool[public_subset(len(pool), flat["public-size"], 0, server_round)]


def distilled(average, models, images, rate, steps):
    """Take steps of Adam from the average towards the softmax of the models' mean logits."""
    teacher = sum(logits(torch.tensor(model), images) for model in models) / len(models)
    teacher = functional.softmax(teacher, dim=1)
    weights = torch.tensor(average, requires_grad=True)
    adam = torch.optim.Adam([weights], rate)
    for _ in range(steps):
        adam.zero_grad()
        log_student = functional.log_softmax(logits(weights, images), dim=1)
        (teacher * (teacher.log() - log_student)).sum(dim=1).mean().backward()
        adam.step()
    return weights.detach().numpy()


def test_the_mean_of_the_models_is_distilled_from_the_mean_of_their_logits(two, tmp_path):
    two |= {"feddf.distillation-steps": 3, "feddf.distillation-learning-rate": 0.01}
    witness, _ = witnessed(two, tmp_path / "run")
    data = [training_data(two, n) for n in (0, 1)]
    sizes = [len(labels) for _, labels in data]
    for server_round in (1, 2):
        start = witness.down[server_round, "train", 0]["weights"]
        models = [trained(start, *own) for own in data]
        average = np.average(models, axis=0, weights=sizes).astype(np.float32)
        images = public_samples(two, server_round)
        expected = distilled(average, models, images, rate=0.01, steps=3)
        following = witness.down[server_round, "evaluate", 1]["weights"]
        # Where a gradient is all but zero, Adam steps as far in either direction.
        is_close = np.isclose(following, expected, atol=1e-4)
        assert is_close.mean() > 0.999
        assert np.abs(following - average).max() > 0.01


def test_architectures_are_averaged_separately_and_distilled_jointly(small, tmp_path, monkeypatch):
    """Clients 0 and 2 have an mlp, 1 and 3 a lenet."""
    taught = {}

    def fit(self, name, model, samples, teacher, server_round, **settings):
        taught[name] = dict(model), teacher
        return dict(model)

    monkeypatch.setattr(RunModels, "fit", fit)
    witness, run = witnessed(small, tmp_path / "run", **{"num-server-rounds": 1})
    sizes = run.clients["num_examples"].to_numpy()
    up = [witness.up[1, "train", n]["weights"] for n in range(4)]
    for name, members in (("mlp", [0, 2]), ("lenet", [1, 3])):
        mean = np.average([up[n] for n in members], axis=0, weights=sizes[members])
        np.testing.assert_allclose(taught[name][0]["weights"], mean, atol=1e-6)
    images = public_samples({**small, "models": "mlp"}, 1).view(-1, 1, 28, 28)
    predictions = []
    for n in range(4):
        client = client_of(small, n)
        client.receive_model({"weights": up[n]})
        with torch.no_grad():
            predictions.append(client.model(images).numpy())
    for _, ensemble in taught.values():
        expected = softmax(np.mean(predictions, axis=0))
        np.testing.assert_allclose(ensemble, expected, atol=1e-5)


def test_an_architecture_without_replies_learns_from_the_others(small, tmp_path):
    app = breaking(raising("gone"), partition_id=1)
    changes = {"num-clients": 2, "num-server-rounds": 1}
    witness, run = witnessed(small, tmp_path / "run", app, **changes)
    assert run.clients["failure"].notna().tolist() == [False, True]
    before = read_config({**small, **changes}).run
    initial = RunModels(before).initial(name="lenet")["weights"]
    after = witness.down[1, "evaluate", 1]["weights"]
    assert after.shape == initial.shape
    assert not np.array_equal(after, initial)


def test_predictions_that_are_no_numbers_leave_the_ensemble():
    good = {n: np.full((2, 3), float(n), dtype=np.float32) for n in (0, 2)}
    bad = {1: np.array([[0, np.nan, 0], [0, 0, 0]], dtype=np.float32)}
    np.testing.assert_allclose(ensemble_logits({**good, **bad}), np.full((2, 3), 1.0))
    assert ensemble_logits(bad) is None


@pytest.mark.parametrize("steps", [3, 1])
def test_a_diverged_distillation_keeps_the_average(steps, two, tmp_path, logged):
    """After a single step the weights are finite, and the predictions are not."""
    changes = {"feddf.distillation-steps": steps, "feddf.distillation-learning-rate": 1e30}
    wild, _ = witnessed(two, tmp_path / "wild", **changes)
    without, _ = witnessed(two, tmp_path / "without", **{"feddf.distillation-steps": 0})
    assert any("the distillation of mlp failed" in line for line in logged())
    last = 2, "evaluate", 0
    np.testing.assert_array_equal(wild.down[last]["weights"], without.down[last]["weights"])


def test_updates_are_clipped_within_their_architecture():
    """With and without batch normalization, and ten times as long in one as in the other."""
    start = {
        "mlp": {"weights": np.zeros(4, np.float32)},
        "lenet": {"weights": np.zeros(9, np.float32), "buffers": np.zeros(2, np.float32)},
    }
    names = SimpleNamespace(names=list(start))
    strategy = FedDF(RunPlan(num_clients=5, num_classes=2), FedDFSettings(), server_models=names)
    strategy.state = FedDFState({}, start)
    norms = {0: 1, 1: 20, 2: 1, 3: 20, 4: 100}
    for n in norms:
        model = "lenet" if n % 2 else "mlp"
        strategy.members.clients[n] = ClientInfo(n, 100 + n, model, num_examples=9)
    replies = {
        n: Reply(n, {kind: v + norm / v.size**0.5 for kind, v in strategy.model_for(n).items()}, {})
        for n, norm in norms.items()
    }
    bounded = strategy.bounded(replies)
    assert list(bounded) == list(norms)
    assert [bounded[n] is replies[n] for n in norms] == [True, True, True, True, False]
    np.testing.assert_allclose(bounded[4].arrays["weights"], 5)


def test_pfeddf_is_feddf_that_clients_fine_tune_before_they_are_evaluated(two, tmp_path):
    feddf, plain = witnessed(two, tmp_path / "feddf")
    pfeddf, tuned = witnessed(two, tmp_path / "pfeddf", strategy="pfeddf", **{"pfeddf.epochs": 2})
    for key, arrays in feddf.down.items():
        np.testing.assert_array_equal(pfeddf.down[key]["weights"], arrays["weights"])
    for n in (0, 1):
        weights = trained(pfeddf.down[2, "evaluate", n]["weights"], *training_data(two, n), steps=2)
        client = client_of({**two, "strategy": "fedavg"}, n)
        expected = client.session.evaluate_model({"weights": weights}, 2).metrics["own-test-loss"]
        losses = [run.clients.query("round == 2")["loss"].iloc[n] for run in (plain, tuned)]
        assert losses[1] == pytest.approx(expected, abs=1e-5)
        assert losses[0] != pytest.approx(expected, abs=1e-3)


def test_a_server_without_its_public_set_stops_before_any_client_works(small, tmp_path):
    def never(message, context):
        raise AssertionError("a client was asked")

    flat = {**small, "public-dataset": "mnist", "data-root": str(tmp_path)}
    run_config = read_config({**flat, "output-dir": str(tmp_path / "run")}).flat()
    grid = InProcessGrid(never, 4, run_config)
    with pytest.raises(DataError, match="mnist"):
        main(grid, Context(1, 1, {}, RecordDict(), run_config))
    assert not (tmp_path / "run").exists()
