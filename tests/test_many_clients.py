"""A client that has not trained costs nothing but its row of the split."""

import torch
from helpers import client_of, run_with

from fedkd_flwr.client_app import app
from fedkd_flwr.config import read_config
from fedkd_flwr.data import clients
from fedkd_flwr.data.clients import load_client
from fedkd_flwr.memory import own_context
from fedkd_flwr.models import model_pool
from fedkd_flwr.models.vectors import copied_state
from strategies.core.client_info import ClientInfo
from strategies.core.membership import Membership
from strategies.core.plan import RunPlan


def test_clients_that_have_not_trained_remember_nothing(small, tmp_path):
    flat = {**small, "strategy": "kt-pfl", "models": "mlp", "num-clients": 5,
            "fraction-train": 0.2, "num-server-rounds": 2}  # fmt: skip
    run, grid = run_with(app, flat, tmp_path / "run")
    trained = {*run.clients.dropna(subset=["train_loss"])["partition_id"]}
    assert 1 <= len(trained) <= 2
    for n, context in grid.contexts.items():
        memory = own_context(context).memory
        assert bool(memory.tensors or memory.numbers) == (n in trained)
    # All of them were evaluated, with a model each.
    last = run.clients[run.clients["round"] == 2]
    assert last["accuracy"].notna().sum() == 5


def test_samples_beyond_the_limit_are_built_again(small, monkeypatch):
    plan = read_config({**small, "seed": 4711}).run.data_plan
    monkeypatch.setattr(clients, "BYTES_KEPT", 0)
    first, again = load_client(plan, 0), load_client(plan, 0)
    assert first is not again
    torch.testing.assert_close(first.train_images, again.train_images, rtol=0, atol=0)
    monkeypatch.undo()
    assert load_client(plan, 0) is load_client(plan, 0)


def test_common_initial_weights_are_drawn_once_and_never_change(small):
    model_pool.clear()
    client = client_of({**small, "strategy": "local", "models": "mlp"}, 0)
    drawn = copied_state(client.new_model())
    with torch.no_grad():
        for parameter in client.model.parameters():
            parameter.add_(1)
    weights = model_pool.common_weights(client.architecture, client.run.plan.seed, client.new_model)
    torch.testing.assert_close(weights, drawn, rtol=0, atol=0)


def test_names_cost_nothing_where_no_client_has_one():
    """Each name is compared with all others, so a hundred thousand clients must not compare."""
    members = Membership(RunPlan(num_clients=2, num_classes=2), needs_public_data=False)
    members.clients = None  # not read
    client = ClientInfo(0, 0, "mlp", 1)
    assert members._with_valid_name(client) is client
