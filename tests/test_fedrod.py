"""Fed-RoD (Chen & Chao 2022): balanced losses, personal heads by hand, and its limits."""

import numpy as np
import pytest
import torch
from by_hand import CHANGES, assert_rounds, parts_of, training_data, witnessed
from helpers import client_of
from torch.nn import functional


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "fedrod"}


def losses(weights, head, images, labels, counts):
    """Return both losses; `weights` are the flat global model, `head` is [weight, bias]."""
    w1, b1, w2, b2 = parts_of(weights)
    features = torch.relu(images @ w1.T + b1)
    generic = features @ w2.T + b2
    # The balanced softmax by its definition: N_y exp(g_y) / sum_c N_c exp(g_c).
    scaled = counts * generic.exp()
    balanced = -(scaled.gather(1, labels[:, None])[:, 0] / scaled.sum(dim=1)).log().mean()
    personal = (features @ w2.T + b2).detach() + features.detach() @ head[0].T + head[1]
    return balanced, functional.cross_entropy(personal, labels)


def test_two_rounds_by_hand(small, tmp_path):
    run, finished = witnessed(small, tmp_path / "run")
    heads = [[torch.zeros(10, 100), torch.zeros(10)] for _ in (0, 1)]

    def end_of(sent, n):
        images, labels = training_data(small, n)
        counts = torch.bincount(labels, minlength=10)
        weights = torch.from_numpy(np.array(sent))
        for _ in range(3):
            weights.requires_grad_()
            head = [part.detach().requires_grad_() for part in heads[n]]
            balanced, personal = losses(weights, head, images, labels, counts)
            (step,) = torch.autograd.grad(balanced, weights)
            steps = torch.autograd.grad(personal, head)
            weights = weights.detach() - 0.2 * step
            heads[n] = [p.detach() - 0.2 * s for p, s in zip(head, steps, strict=True)]
        return weights.numpy()

    assert_rounds(run, small, end_of, atol=5e-6)
    sent = run.down[2, "evaluate", 0]["weights"]
    rows = finished.clients[finished.clients["round"] == 2].set_index("partition_id")
    for n in (0, 1):
        data = client_of(small, n).data
        w1, b1, w2, b2 = parts_of(torch.from_numpy(np.array(sent)))
        features = torch.relu(data.test_images.flatten(1) @ w1.T + b1)
        generic = features @ w2.T + b2
        personal = generic + features @ heads[n][0].T + heads[n][1]
        right = (generic.argmax(dim=1) == data.test_labels).float().mean()
        loss = functional.cross_entropy(personal, data.test_labels)
        assert rows.loc[n, "loss"] == pytest.approx(float(loss), abs=2e-5)
        assert rows.loc[n, "global_accuracy"] == pytest.approx(float(right))


def test_classes_without_samples_do_not_move_in_the_generic_head(small, tmp_path):
    small |= {"partition": "k-classes", "classes-per-client": 2, "num-server-rounds": 1}
    run, _ = witnessed(small, tmp_path / "run")
    for n in (0, 1):
        absent = np.setdiff1d(np.arange(10), training_data(small, n)[1].numpy())
        before, after = (
            parts_of(torch.from_numpy(np.array(part[1, "train", n]["weights"])))
            for part in (run.down, run.up)
        )
        assert absent.size
        for k in (2, 3):
            np.testing.assert_array_equal(after[k][absent], before[k][absent])
        assert np.isfinite(after[0]).all()
