"""FedMRL (Yi et al. 2024): fused features by hand, limits, what is kept, exports and refusals."""

import numpy as np
import pytest
import torch
from by_hand import CHANGES, parts_of, returned_weights, sizes_of, training_data, witnessed
from helpers import client_of
from torch.nn import functional

import fedkd_flwr
from fedkd_flwr.analysis.cross import cross
from fedkd_flwr.clients.fedmrl import FusedPair
from fedkd_flwr.models.genotype import STANDARD
from fedkd_flwr.models.model_pool import Architecture

D1 = 16
DATA = (1, 28, 28), 10, STANDARD

SHARED = ((100, 784), (100,), (D1, 100), (D1,), (10, D1), (10,))
"""Shapes of the shared mlp's parameters, with a layer from its 100 features to d1."""


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "fedmrl", "fedmrl.shared-width": D1}


def logits_of(shared, own, images):
    """Return coarse and fine logits; `own` is the private mlp's four tensors and the projector."""
    s1, c1, s2, c2, s3, c3 = parts_of(shared, SHARED)
    w1, b1, w2, b2, projector, bias = own
    general = torch.relu(images @ s1.T + c1) @ s2.T + c2
    personal = torch.relu(images @ w1.T + b1)
    fused = general @ projector[:, :D1].T + personal @ projector[:, D1:].T + bias
    return fused[:, :D1] @ s3.T + c3, fused @ w2.T + b2


def test_two_rounds_of_two_clients_by_hand(small, tmp_path):
    small |= {"fedmrl.coarse-weight": 0.5}
    run, finished = witnessed(small, tmp_path / "run")
    shares, back = sizes_of(small) / sizes_of(small).sum(), returned_weights(run)
    own = []
    for n in (0, 1):
        pair = client_of(small, n).pair
        start = [*pair.private.parameters(), *pair.projector.parameters()]
        own.append([tensor.detach().clone() for tensor in start])
    torch.testing.assert_close(*own, rtol=0, atol=0)
    for t in (1, 2):
        ends = []
        for n in (0, 1):
            images, labels = training_data(small, n)
            shared = torch.from_numpy(np.array(run.down[t, "train", n]["weights"]))
            for _ in range(3):
                shared.requires_grad_()
                parts = [part.requires_grad_() for part in own[n]]
                coarse, fine = (
                    functional.cross_entropy(logits, labels)
                    for logits in logits_of(shared, parts, images)
                )
                first, *rest = torch.autograd.grad(0.5 * coarse + fine, [shared, *parts])
                shared = shared.detach() - 0.2 * first
                own[n] = [p.detach() - 0.2 * s for p, s in zip(parts, rest, strict=True)]
            np.testing.assert_allclose(back[t, n], shared.numpy(), atol=5e-6)
            ends.append(shared)
        if t == 1:
            sent = run.down[2, "train", 0]["weights"]
            np.testing.assert_allclose(sent, shares @ np.stack(ends), atol=5e-6)
    rows = finished.clients[finished.clients["round"] == 2].set_index("partition_id")
    for n in (0, 1):
        data = client_of(small, n).data
        _, fine = logits_of(ends[n], own[n], data.test_images.flatten(1))
        expected = functional.cross_entropy(fine, data.test_labels)
        assert rows.loc[n, "loss"] == pytest.approx(float(expected), abs=2e-5)


def test_without_the_coarse_loss_the_shared_head_stays_as_it_was(small, tmp_path):
    run, _ = witnessed({**small, "fedmrl.coarse-weight": 0.0}, tmp_path / "run")
    head = slice(-(10 * D1 + 10), None)
    first = run.down[1, "train", 0]["weights"]
    for weights in returned_weights(run).values():
        np.testing.assert_allclose(weights[head], first[head], atol=1e-7)
        assert not np.allclose(weights[: head.start], first[: head.start], atol=1e-4)


def test_a_pair_equals_two_networks_whose_logits_are_added():
    torch.manual_seed(0)
    images = torch.randn(5, 1, 28, 28)
    for name, width in (("mlp", 0), ("lenet", 32)):
        private, shared = (
            Architecture(*whose, device="cpu", feature_width=d).build()
            for *whose, d in ((name, *DATA, width), ("mlp", *DATA, 8))
        )
        pair = FusedPair(private, shared)
        torch.testing.assert_close(pair.as_ensemble()(images), pair(images))


def test_stored_models_are_evaluated_with_the_shared_one(small, tmp_path):
    settings = {**small, "models": "mlp,lenet", "state-dir": str(tmp_path / "state")}
    finished = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    rows = finished.clients[finished.clients["round"] == 2]
    np.testing.assert_allclose(np.diag(cross(tmp_path / "run").accuracies), rows["accuracy"])
