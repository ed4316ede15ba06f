"""FedNAS (He et al. 2020): the two steps of MiLeNAS, the mean of supernets, DARTS and FedAvg."""

import numpy as np
import pytest
import torch
from helpers import SMALLEST_SUPERNET, Witness, client_of, names_in_state, run_with
from torch.nn.functional import cross_entropy

import fedkd_flwr
from fedkd_flwr.analysis.client_models import client_genotypes
from fedkd_flwr.clients.supernets import split_parameters
from fedkd_flwr.config import read_config
from fedkd_flwr.server_app import initial_model


@pytest.fixture
def tiny(small):
    """Two clients of unequal sizes with the smallest supernet."""
    return {
        **small,
        **SMALLEST_SUPERNET,
        "strategy": "fednas",
        "public-dataset": "none",
        "partition": "dirichlet",
        "max-samples": 160,
        "client-split": "75/0/25",
        "num-clients": 2,
        "learning-rate": 0.02,
    }


def test_a_step_on_alpha_sees_both_losses_and_the_step_on_w_the_training_loss(tiny):
    """One batch of all samples of each part: two steps, by autograd on the plain formulas."""
    tiny |= {
        "batch-size": 512, "local-epochs": 1, "momentum": 0.0, "learning-rate": 0.3,
        "fednas.alpha-optimizer": "sgd", "fednas.alpha-learning-rate": 0.7,
        "fednas.alpha-weight-decay": 0.0, "fednas.training-weight": 0.4,
    }  # fmt: skip
    client, other = client_of(tiny), client_of(tiny)
    for one in (client, other):
        one.receive_model(initial_model(read_config(tiny)))
    loss = client.search(1)

    model = other.model.train()
    of_training, held_out = (
        (other.data.train_images[part], other.data.train_labels[part])
        for part in other.search_samples()
    )
    alphas, omegas = split_parameters(model)

    def mean_loss(images, labels):
        return cross_entropy(model(images), labels)

    def descend(parameters, value, rate):
        for parameter, slope in zip(
            parameters, torch.autograd.grad(value, parameters), strict=True
        ):
            parameter.data -= rate * slope

    before = [alpha.detach().clone() for alpha in alphas]
    descend(alphas, mean_loss(*held_out) + 0.4 * mean_loss(*of_training), 0.7)
    assert all((a - b).abs().max() > 1e-5 for a, b in zip(alphas, before, strict=True))
    value = mean_loss(*of_training)
    assert loss == pytest.approx(value.item(), rel=1e-4)
    descend(omegas, value, 0.3)
    found, expected = ([*one.parameters()] for one in (client.model, model))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_the_server_averages_weights_and_architecture_by_samples(tiny, tmp_path):
    """Round 2 starts from the mean of round 1, which is all that the server keeps."""
    witness = Witness()
    run, _ = run_with(witness, tiny, tmp_path / "run")
    sizes = run.clients[run.clients["round"] == 1].sort_values("partition_id")["num_examples"]
    first, second = sizes / sizes.sum()
    assert first != second
    for name in ("weights", "alphas", "buffers"):
        sent, other = (witness.down[2, "train", n][name] for n in (0, 1))
        np.testing.assert_array_equal(sent, other)
        back, again = (witness.up[1, "train", n][name] for n in (0, 1))
        np.testing.assert_allclose(sent, first * back + second * again, rtol=1e-4, atol=1e-6)
        assert not np.array_equal(sent, witness.down[1, "train", 0][name])
    assert names_in_state(run.path) == {"model/weights", "model/alphas", "model/buffers"}
    common, same = client_genotypes(run)
    assert common == same


def test_without_the_training_loss_alone_it_is_first_order_darts(tiny, tmp_path):
    """One client: its search is that of FedKMA, and the mean is its own supernet."""
    tiny |= {"num-clients": 1, "partition": "iid", "max-samples": 80}
    search = {"alpha-optimizer": "sgd", "alpha-learning-rate": 0.05, "alpha-share": 0.5}
    darts, without, mixed = (
        fedkd_flwr.run(
            {
                **tiny,
                "strategy": strategy,
                **{f"{table}.{k}": v for k, v in search.items()},
                **more,
            },
            output_dir=tmp_path / name,
        )
        for name, strategy, table, more in (
            ("darts", "fedkma-uniform", "fedkma", {"fedkma.alpha-weight-decay": 1e-3}),
            ("without", "fednas", "fednas", {"fednas.training-weight": 0.0}),
            ("mixed", "fednas", "fednas", {}),
        )
    )
    np.testing.assert_array_equal(without.matrices["alphas"], darts.matrices["alphas"])
    assert list(without.clients["train_loss"]) == list(darts.clients["train_loss"])
    assert not np.array_equal(mixed.matrices["alphas"], darts.matrices["alphas"])


def test_with_a_fixed_network_it_trains_as_fedavg_does(tiny, tmp_path):
    tiny |= {"models": "darts-fixed"}
    runs = [
        fedkd_flwr.run({**tiny, "strategy": strategy}, output_dir=tmp_path / strategy)
        for strategy in ("fednas", "fedavg")
    ]
    assert list(runs[0].clients["train_loss"]) == list(runs[1].clients["train_loss"])
    assert not runs[0].matrices
