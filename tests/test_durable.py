"""What must not be lost between messages, rounds and crashes."""

import numpy as np
import pytest
from conftest import SMALL
from helpers import client_of, run_with
from safetensors.numpy import load_file

import fedkd_flwr
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.files import write_arrays
from fedkd_flwr.memory import Memory
from fedkd_flwr.training.optimizers import build_optimizer, scheduled_rate
from strategies.core.privacy import privacy_spent


def test_a_round_that_is_cut_off_and_repeated_costs_privacy_twice(small, tmp_path, monkeypatch):
    """The releases of round 2 are written down before they are asked for."""
    settings = {**small, "strategy": "kt-pfl", "num-server-rounds": 3}
    settings |= {"soft-predictions.clip-norm": 1.0, "soft-predictions.noise-multiplier": 5.0}

    def dies(row):
        if row["round"] == 1:
            monkeypatch.setattr("strategies.base.PersonalizedStrategy.aggregate_train", power_cut)

    def power_cut(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedkd_flwr.run(settings, output_dir=tmp_path / "run", on_round=dies)
    monkeypatch.undo()
    resumed = fedkd_flwr.resume(tmp_path / "run")
    # Round 1 once, round 2 twice, round 3 once.
    expected = [privacy_spent(5.0, releases, 1e-5) for releases in (1, 3, 4)]
    np.testing.assert_allclose(resumed.rounds["epsilon"], expected)


def test_a_file_of_arrays_gives_back_what_lies_in_another_order(tmp_path):
    image = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    arrays = {
        "plain": image,
        "transposed": image[0, 0].T,
        "channels last": np.ascontiguousarray(image.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
        "every second": image[..., ::2],
        "a number": np.array(3.0),
    }
    write_arrays(tmp_path / "file.safetensors", arrays)
    found = load_file(tmp_path / "file.safetensors")
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_an_optimizers_whole_state_lives_on(name, small):
    memory = Memory()
    client = client_of(small, strategy="local", models="mlp")
    model = client.new_model()
    first = build_optimizer(name, model.parameters(), 0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()
    first.step()
    memory.save_optimizer("optimizer", first)
    second = build_optimizer(name, model.parameters(), 0.1, momentum=0.9)
    memory.load_optimizer("optimizer", second)
    before, after = (optimizer.state_dict()["state"] for optimizer in (first, second))
    assert before and before.keys() == after.keys()
    for position, state in before.items():
        assert state.keys() == after[position].keys()
        for key, value in state.items():
            np.testing.assert_array_equal(np.asarray(value), np.asarray(after[position][key]))


def test_moments_of_adam_make_the_second_round_another(small):
    """A client that forgot them would take the second round's steps as if they were the first."""
    ends = []
    for forgets in (False, True):
        client = client_of(small, strategy="local", models="mlp", optimizer="adam")
        client.train_locally(1)
        if forgets:
            del client.memory.tensors["optimizer"]
        client.train_locally(2)
        ends.append(next(client.model.parameters()).detach().clone())
    assert not np.array_equal(*ends)


def test_schedules_by_hand():
    rates = {
        name: [scheduled_rate(0.8, name, t, 4) for t in (1, 2, 3, 4)]
        for name in ("constant", "cosine", "step")
    }
    assert rates["constant"] == [0.8] * 4
    np.testing.assert_allclose(rates["step"], [0.8, 0.8, 0.08, 0.008])
    np.testing.assert_allclose(
        rates["cosine"], [0.4 * (1 + c) for c in (1, 2**-0.5, 0, -(2**-0.5))]
    )


def test_what_clients_report_of_their_training_is_recorded(small, tmp_path):
    run = fedkd_flwr.run({**small, "strategy": "kt-pfl"}, output_dir=tmp_path / "run")
    last = run.clients[run.clients["round"] == 2]
    for column in ("train_loss", "distillation_loss"):
        assert last[column].notna().all()
        assert run.rounds[f"{column}_mean"].iloc[-1] == pytest.approx(last[column].mean())
    run = fedkd_flwr.run({**small, "strategy": "perfed-ckt"}, output_dir=tmp_path / "ckt")
    assert set(run.clients.query("round == 2")["cluster"]) <= {0.0, 1.0, 2.0}


def test_a_model_that_cannot_be_exported_does_not_cost_the_evaluation(small, tmp_path, logged):
    file = tmp_path / "a-file"
    file.write_text("")
    nodes = {1: {"models-dir": str(file)}}
    run, _ = run_with(
        client_app, small, tmp_path / "run", node_configs=nodes, strategy="local", models="mlp"
    )
    assert run.clients.query("round == 2")["accuracy"].notna().sum() == SMALL["num-clients"]
    assert any("Client 1: its model was not exported" in line for line in logged())


def test_an_unmet_setting_is_logged(small, tmp_path, logged):
    changes = {"strategy": "local", "models": "mlp", "num-server-rounds": 1}
    changes |= {"samples-per-class": 300, "data-root": str(tmp_path)}
    fedkd_flwr.run({**small, **changes}, output_dir=tmp_path / "run")
    (cut,) = [line for line in logged() if "samples-per-class" in line]
    assert cut.startswith("samples-per-class = 300, and there are only ")
    assert "digits does not read data-root: ignored." in logged()


def test_met_settings_are_not_logged(small, tmp_path, logged):
    changes = {"strategy": "local", "models": "mlp", "num-server-rounds": 1}
    fedkd_flwr.run({**small, **changes, "samples-per-class": 10}, output_dir=tmp_path / "run")
    assert not [line for line in logged() if "samples-per-class" in line or "data-root" in line]
