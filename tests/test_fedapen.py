"""FedAPEN (Qin et al. 2023): the ensemble and its weight by hand, limits, exports and refusals."""

import numpy as np
import pytest
import torch
from by_hand import (
    CHANGES,
    assert_same_models,
    returned_weights,
    sizes_of,
    witnessed,
)
from by_hand import logits as logits_of
from helpers import breaking, client_of, run_with
from torch import nn
from torch.nn import functional

AS_FML = {"fedapen.adaptability-share": 0.0, "fedapen.ensemble-weight": 0.0}
"""Settings with which both models learn as in FML, at twice its rate."""

NORMED = "tests.disclosure:NormedNet"


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "fedapen"}


def learned(weight, own, shared, images, labels, rate, steps):
    """Return lambda after some steps on all samples at once, by autograd."""
    for _ in range(steps):
        weight = weight.detach().requires_grad_()
        logits = weight * logits_of(own, images) + (1 - weight) * logits_of(shared, images)
        (slope,) = torch.autograd.grad(functional.cross_entropy(logits, labels), weight)
        weight = (weight - rate * slope).clamp(0, 1)
    return weight.detach()


def trained(own, shared, weight, images, labels, rate, steps, mu):
    """Return both models after some steps, with the loss of each model as the paper writes it."""
    for _ in range(steps):
        own, shared = (part.detach().requires_grad_() for part in (own, shared))
        p, s = logits_of(own, images), logits_of(shared, images)
        slopes = []
        for mine, other, model, share in ((p, s, own, weight), (s, p, shared, 1 - weight)):
            fixed = other.detach()
            imitation = functional.kl_div(
                mine.log_softmax(dim=1), fixed.softmax(dim=1), reduction="batchmean"
            )
            ensemble = share * mine + (1 - share) * fixed
            loss = functional.cross_entropy(mine, labels) + imitation
            loss = loss + mu * functional.cross_entropy(ensemble, labels)
            slopes.append(torch.autograd.grad(loss, model, retain_graph=True)[0])
        own, shared = (
            part - rate * slope for part, slope in zip((own, shared), slopes, strict=True)
        )
    return own.detach(), shared.detach()


def test_two_rounds_of_two_clients_by_hand(small, tmp_path):
    small |= {
        "learning-rate": 0.1,
        "initial-weights": "own",
        "fedapen.private-weight": 0.3,
        "fedapen.ensemble-weight": 0.5,
        "fedapen.adaptability-share": 0.1,
        "fedapen.adaptability-epochs": 2,
        "fedapen.adaptability-rate": 0.7,
    }
    run, finished = witnessed(small, tmp_path / "run")
    shares, back = sizes_of(small) / sizes_of(small).sum(), returned_weights(run)
    clients = [client_of(small, n) for n in (0, 1)]
    own = [nn.utils.parameters_to_vector(c.model.parameters()).detach().clone() for c in clients]
    weights = [torch.tensor(0.3), torch.tensor(0.3)]
    rows = finished.clients.set_index(["round", "partition_id"])
    for t in (1, 2):
        ends = []
        for n, client in enumerate(clients):
            kept, used = client.parts
            images, labels = client.data.train_images.flatten(1), client.data.train_labels
            shared = torch.from_numpy(np.array(run.down[t, "train", n]["weights"]))
            weights[n] = learned(weights[n], own[n], shared, images[kept], labels[kept], 0.7, 2)
            own[n], shared = trained(
                own[n], shared, weights[n], images[used], labels[used], 0.1, 3, mu=0.5
            )
            assert rows.loc[(t, n), "private_weight"] == pytest.approx(float(weights[n]), abs=1e-5)
            np.testing.assert_allclose(back[t, n], shared.numpy(), atol=5e-6)
            ends.append(shared.numpy())
        mean = torch.from_numpy(np.float32(shares @ np.stack(ends)))
        for n, client in enumerate(clients):
            data, kept = client.data, client.parts[0]
            images, labels = data.train_images.flatten(1)[kept], data.train_labels[kept]
            weight = learned(weights[n], own[n], mean, images, labels, 0.7, 2)
            test = data.test_images.flatten(1)
            logits = weight * logits_of(own[n], test) + (1 - weight) * logits_of(mean, test)
            expected = functional.cross_entropy(logits, data.test_labels)
            assert rows.loc[(t, n), "loss"] == pytest.approx(float(expected), abs=5e-5)
    assert (rows["fine_tuning_steps"] == 2).all()
    assert (rows["gradient_steps"] == 2 + 3).all()


def test_the_adaptability_set_trains_no_model(small):
    client = client_of({**small, "fedapen.adaptability-share": 0.3})
    kept, used = client.parts
    total = client.data.num_train
    assert len(kept) == int(0.3 * total)
    assert sorted([*kept.tolist(), *used.tolist()]) == list(range(total))
    batches = [images for images, _ in client.private_batches(1)]
    own = client.data.train_images
    for images in batches:
        seen = (images[:, None] == own[None]).flatten(2).all(dim=2).any(dim=0).nonzero()[:, 0]
        assert set(seen.tolist()) <= set(used.tolist())
    assert sum(map(len, batches)) == 3 * len(used)


def test_the_adaptability_set_fine_tunes_no_model(small, monkeypatch):
    client = client_of({**small, "fedapen.adaptability-share": 0.3, "fine-tune-epochs": 2})
    seen = []
    see = lambda model, loss, optimizer, batches: seen.extend(batches)  # noqa: E731
    monkeypatch.setattr("fedkd_flwr.clients.evaluating.train_on", see)
    client.session.evaluating.prepared({}, 1)
    kept, used = client.parts
    assert sum(len(labels) for _, labels in seen) == 2 * len(used)
    images, own = torch.cat([images for images, _ in seen]), client.data.train_images
    assert not (images[:, None] == own[kept][None]).flatten(2).all(dim=2).any()


def test_without_the_ensemble_both_models_learn_as_in_fml_bit_for_bit(small, tmp_path):
    """With lambda 1 the private model is evaluated, as in FML."""
    small |= {**AS_FML, "batch-size": 16, "momentum": 0.9, "models": "mlp,lenet"}
    small |= {"learning-rate": 0.02, "fedapen.private-weight": 1.0}
    fedapen, finished = witnessed(small, tmp_path / "fedapen")
    fml, expected = witnessed(small, tmp_path / "fml", strategy="fml", **{"learning-rate": 0.04})
    assert_same_models(fedapen, fml)
    assert list(finished.clients["loss"]) == list(expected.clients["loss"])


def test_lambda_is_learned_with_the_statistics_of_an_evaluation(small):
    """Statistics of the received model do not matter, and training goes on with them."""
    name = NORMED
    client = client_of(
        {**small, "models": name, "initial-weights": "own", "fedapen.adaptability-rate": 0.5},
        partition_id=1,
    )
    learned_weights = []
    for shift in (0.0, 3.0):
        received = {
            kind: vector + (shift if kind == "buffers" else 0)
            for kind, vector in fedkd_vectors(client.shared).items()
        }
        client.state.private_weight = 0.5
        client.receive(received)
        learned_weights.append(client.state.private_weight)
        np.testing.assert_array_equal(fedkd_vectors(client.shared)["buffers"], received["buffers"])
        client.receive(dict(received, buffers=received["buffers"] - np.float32(shift)))
    assert learned_weights[0] == learned_weights[1] != 0.5


def fedkd_vectors(model):
    from fedkd_flwr.models.vectors import model_vectors

    return {kind: np.array(vector) for kind, vector in model_vectors(model).items()}


def test_a_lambda_outside_of_its_interval_is_refused(small, tmp_path):
    boast = breaking(lambda reply: reply.content["metrics"].update({"private-weight": 1.5}))
    run, _ = run_with(boast, small, tmp_path / "run")
    assert list(run.rounds["failures"]) == [1, 1]
