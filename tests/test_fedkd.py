"""FedKD (Wu et al. 2022): the adaptive losses, truncated factors, their bytes and refusals."""

import numpy as np
import pytest
import torch
from helpers import Witness, reply_with, run_with
from torch import nn

from fedkd_flwr.clients.fedkd import FeaturePair, adaptive_mutual_loss
from fedkd_flwr.models.build import build_model
from fedkd_flwr.models.vectors import matrix_shapes, model_vectors
from strategies.core.plan import RunPlan
from strategies.core.replies import InvalidReplyError
from strategies.fedkd import FedKD, FedKDSettings, compressed, rank_for_energy, restored


@pytest.fixture
def small(small):
    return {**small, "strategy": "fedkd", "momentum": 0.0}


def test_the_rank_is_the_least_that_keeps_the_energy():
    values = np.array([3.0, 2.0, 1.0])
    energies = {9 / 14: 1, 0.65: 2, 13 / 14: 2, 0.95: 3, 1.0: 3}
    assert {energy: rank_for_energy(values, energy) for energy in energies} == energies
    assert rank_for_energy(np.zeros(3), 0.9) == 1


def test_factors_restore_the_requested_share_of_energy():
    generator = np.random.default_rng(0)
    low = generator.normal(size=(30, 2)) @ generator.normal(size=(2, 20))
    matrices = [low + 0.01 * generator.normal(size=low.shape), generator.normal(size=(8, 1))]
    matrices = [matrix.astype(np.float32) for matrix in matrices]
    factors, ranks = compressed(matrices, 0.99)
    assert ranks.tolist() == [2, 0]
    assert len(factors) == 2 * (30 + 20) + 8
    found = list(restored(factors, ranks, [matrix.shape for matrix in matrices]))
    lost = np.square(found[0] - matrices[0]).sum() / np.square(matrices[0]).sum()
    assert 0 < lost < 0.01
    np.testing.assert_array_equal(found[1], matrices[1])
    everything = restored(*compressed(matrices, 1.0), [matrix.shape for matrix in matrices])
    np.testing.assert_allclose(next(everything), matrices[0], atol=1e-5)


def test_the_energy_rises_linearly_over_the_rounds():
    settings = FedKDSettings(energy_start=0.9, energy_end=1.0)
    assert [settings.energy(t, 3) for t in (1, 2, 3)] == pytest.approx([0.9, 0.95, 1.0])
    assert settings.energy(1, 1) == 0.9


@pytest.mark.parametrize("name", ["mlp", "lenet", "shufflenetv2"])
def test_the_shapes_of_a_model_fill_its_vector(name):
    model = build_model(name, (1, 28, 28), 10)
    assert matrix_shapes(model).prod(axis=1).sum() == len(model_vectors(model)["weights"])


def test_the_loss_of_both_models_by_autograd_on_plain_formulas():
    torch.manual_seed(0)
    wide, narrow = (nn.Sequential(nn.Linear(2, d), nn.Linear(d, 2)) for d in (3, 1))
    wide.architecture, narrow.architecture = "wide", "narrow"
    pair = FeaturePair(wide, narrow)
    images, labels = torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
    adaptive_mutual_loss(pair, images, labels).backward()
    found = [parameter.grad.clone() for parameter in pair.parameters()]
    own, other = pair.private[0](images), pair.shared[0](images)
    t, s = pair.private[1](own).log_softmax(1), pair.shared[1](other).log_softmax(1)
    task = -t[range(4), labels].mean() - s[range(4), labels].mean()
    kl_t = (s.detach().exp() * (s.detach() - t)).sum(1).mean()
    kl_s = (t.detach().exp() * (t.detach() - s)).sum(1).mean()
    hidden = (own - other @ pair.between.weight.T).square().mean()
    by_hand = task + (kl_t + kl_s + hidden) / task.item()
    expected = torch.autograd.grad(by_hand, list(pair.parameters()))
    torch.testing.assert_close(found, [*expected])


def test_the_server_adds_the_mean_update_by_samples(small, tmp_path):
    """Two clients of unequal sizes; the batch norm of the shared model is averaged whole."""
    small |= {"num-clients": 2, "partition": "dirichlet", "max-samples": 200}
    small |= {"fedkd.shared-model": "shufflenetv2", "models": "mlp", "local-iterations": 2}
    witness = Witness()
    finished, _ = run_with(witness, small, tmp_path / "run")
    sizes = finished.clients.query("round == 1")["num_examples"].to_numpy()
    shapes = matrix_shapes(build_model("shufflenetv2", (1, 28, 28), 10))
    updates = []
    for n in (0, 1):
        sent = witness.up[1, "train", n]
        matrices = restored(sent["factors"], sent["ranks"], [tuple(shape) for shape in shapes])
        updates.append(np.concatenate([matrix.reshape(-1) for matrix in matrices]))
    before, after = (witness.down[t, "train", 0] for t in (1, 2))
    mean = np.average(updates, axis=0, weights=sizes)
    np.testing.assert_allclose(after["weights"], before["weights"] + mean, atol=1e-5)
    buffers = [witness.up[1, "train", n]["buffers"] for n in (0, 1)]
    np.testing.assert_allclose(
        after["buffers"], np.average(buffers, axis=0, weights=sizes), rtol=1e-4, atol=1e-6
    )


class SmallModels:
    """A shared model of two matrices, 5 by 2 and 7 by 1."""

    def initial_shared(self, name=""):
        return {"weights": np.zeros(17, dtype=np.float32)}

    def shapes(self, name):
        return np.array([[5, 2], [7, 1]])


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"ranks": np.array([3, 0], dtype=np.int32)}, "a rank that its matrix cannot have"),
        ({"ranks": np.array([-1, 0], dtype=np.int32)}, "a rank that its matrix cannot have"),
        ({"factors": np.zeros(9, dtype=np.float32)}, "holds 9 numbers instead of 14"),
        ({"factors": np.full(14, 1e5, dtype=np.float32)}, "multiply to a number beyond"),
        ({"factors": np.full(14, 1e30, dtype=np.float32)}, "multiply to a number beyond"),
    ],
)
def test_invalid_factors_are_refused(arrays, reason):
    plan = RunPlan(num_clients=1, num_classes=2)
    strategy = FedKD(plan, FedKDSettings(), server_models=SmallModels())
    strategy.state = strategy.begin({})
    honest = {"factors": np.ones(14, np.float32), "ranks": np.array([1, 0], np.int32)}
    strategy.check_reply(reply_with(honest))
    with pytest.raises(InvalidReplyError, match=reason), np.errstate(all="ignore"):
        strategy.check_reply(reply_with({**honest, **arrays}))
