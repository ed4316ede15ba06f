"""Whole runs in one process: every method, its accounting, its determinism, its messages."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import Witness, run_with

import fedkd_flwr
from fedkd_flwr.client_app import app
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.data import clients
from fedkd_flwr.data.clients import load_client
from fedkd_flwr.export import load_model, round_folder
from fedkd_flwr.memory import own_context
from fedkd_flwr.methods import METHODS
from fedkd_flwr.training.loop import evaluate
from strategies.core.rounds import EarlyStopping

ROUND_COLUMNS = [
    "round", "accuracy_mean", "accuracy_std", "accuracy_min", "accuracy_max",
    "accuracy_weighted", "loss_mean", "numbers_up", "numbers_down", "numbers_down_broadcast",
    "bytes_up", "bytes_down", "replies", "failures", "seconds_train", "seconds_server",
    "seconds_evaluate",
]  # fmt: skip
SOFT = [name for name, method in METHODS.items() if method.record.family == "soft predictions"]


def run(small, tmp_path, name="run", **changes):
    return fedkd_flwr.run({**small, **changes}, output_dir=tmp_path / name)


def test_a_run_writes_its_run_directory(small, tmp_path):
    finished = run(small, tmp_path, strategy="kt-pfl", models="mlp,lenet")
    assert finished.finished
    assert set(ROUND_COLUMNS) <= set(finished.rounds.columns)
    assert list(finished.rounds["round"]) == [1, 2]
    assert (finished.rounds["failures"] == 0).all()
    assert finished.rounds["accuracy_mean"].between(0, 1).all()
    evaluated = finished.clients[finished.clients["accuracy"].notna()]
    assert sorted(evaluated["partition_id"]) == sorted([0, 1, 2, 3] * 2)
    assert finished.summary["strategy"] == "kt-pfl"
    last = finished.rounds.iloc[-1]
    assert finished.summary["last_round"]["accuracy_mean"] == last["accuracy_mean"]
    assert {"python", "flwr", "torch"} <= finished.description["versions"].keys()
    other = run(small, tmp_path, "other", strategy="kt-pfl", models="mlp,lenet", seed=1)
    assert list(finished.rounds["loss_mean"]) != list(other.rounds["loss_mean"])


def test_kt_pfl_counts_p_times_k_numbers_each_way(small, tmp_path):
    finished = run(small, tmp_path, strategy="kt-pfl")
    numbers = 40 * 10
    assert list(finished.rounds["numbers_up"]) == [4 * numbers, 4 * numbers]
    # The first round has no teachers yet. The last one has others for the last distillation.
    assert list(finished.rounds["numbers_down"]) == [0, 2 * 4 * numbers]
    assert list(finished.rounds["numbers_down_broadcast"]) == [0, 2 * 4 * numbers]
    by_client = finished.clients.set_index(["round", "partition_id"])
    assert (by_client["numbers_up"] == numbers).all()
    assert (by_client.loc[2]["numbers_down"] == 2 * numbers).all()
    # Four bytes a number, and a short header for each array.
    for column, messages in {"bytes_up": 4, "bytes_down": 8}.items():
        sent = finished.rounds[column].iloc[1]
        assert messages * 4 * numbers <= sent <= messages * (4 * numbers + 256)


@pytest.mark.parametrize("strategy", SOFT)
def test_soft_prediction_methods_never_send_weights(strategy, small, tmp_path):
    witness = Witness()
    run_with(witness, small, tmp_path / "run", strategy=strategy)
    allowed = {("predictions", (40, 10)), ("teacher", (40, 10))}
    masks = {("selected", (5,)), ("kept", (5,)), ("asked", (5,))}
    labels = {("labels", (2,))}
    clusters = {("centroids", (c, 40, 10)) for c in range(1, 5)}
    sent = {
        (name, array.shape)
        for arrays in (*witness.up.values(), *witness.down.values())
        for name, array in arrays.items()
    }
    assert sent & {("predictions", (40, 10)), ("labels", (2,))}
    assert sent <= allowed | masks | labels | clusters


def test_validation_round_is_chosen_on_validation_data(small, tmp_path):
    finished = run(small, tmp_path, strategy="local", **{"num-server-rounds": 4})
    chosen = finished.summary["validation_round"]
    best = finished.rounds.sort_values(
        ["validation_accuracy_mean", "round"], ascending=[False, True]
    ).iloc[0]
    assert chosen["round"] == best["round"]
    assert chosen["accuracy_mean"] == best["accuracy_mean"]


def test_a_directory_with_a_run_is_left_alone(small, tmp_path):
    run(small, tmp_path, strategy="local", models="mlp")
    before = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    with pytest.raises(OSError, match="already holds a run"):
        run(small, tmp_path, strategy="local", models="mlp")
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "name", ["summary.json", "rounds.jsonl", "patients.jsonl", "matrices/coefficients.npy"]
)
def test_a_file_of_something_else_is_neither_replaced_nor_extended(name, small, tmp_path):
    file = tmp_path / "run" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(OSError, match=f"holds a file {name} that belongs to no run"):
        run(small, tmp_path, strategy="local", models="mlp")
    assert file.read_text() == "mine"
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_file()] == [file]


def test_a_folder_of_runs_is_refused_as_output_dir(small, tmp_path):
    run(small, tmp_path, strategy="local", models="mlp")
    with pytest.raises(OSError, match="is a folder of runs, such as run; choose a new folder"):
        run(small, tmp_path, ".", strategy="local", models="mlp")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_columns_say_how_far_knowledge_moves_the_weights(small, tmp_path):
    """A distillation step a thousand times smaller moves them about a thousand times less."""
    moved = {}
    for rate in (0.05, 0.00005):
        changes = {"strategy": "kt-pfl", "kt-pfl.distillation-learning-rate": rate}
        finished = run(small, tmp_path, name=str(rate), **changes)
        assert finished.rounds["moved_private_mean"].gt(0.001).all()
        assert finished.clients.query("round == 1")["moved_public"].isna().all()
        moved[rate] = finished.rounds["moved_public_mean"].iloc[1]
    assert 300 < moved[0.05] / moved[0.00005] < 3000


def test_the_number_of_threads_of_a_run_is_put_back(small, tmp_path):
    changes = {"strategy": "local", "models": "mlp", "num-server-rounds": 1, "torch-threads": 2}
    assert run(small, tmp_path, **changes).description["torch_threads"] == 2
    assert torch.get_num_threads() == 1


def test_runs_in_threads_of_one_process_are_those_in_turn(small, tmp_path):
    changes = {"strategy": "local", "models": "lenet", "cohort": "off"}
    in_turn = [run(small, tmp_path, f"turn-{seed}", **changes, seed=seed) for seed in (0, 1)]
    with ThreadPoolExecutor(2) as threads:
        at_once = threads.map(
            lambda seed: run(small, tmp_path, f"at-once-{seed}", **changes, seed=seed), (0, 1)
        )
    for one, other in zip(in_turn, at_once, strict=True):
        assert list(one.rounds["loss_mean"]) == list(other.rounds["loss_mean"])


# ---- A client that has not trained costs nothing but its row of the split ------------


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


# ---- Early stopping ------------------------------------------------------------------


def test_patience_by_hand():
    patience = EarlyStopping(2)
    seen = []
    for number, accuracy in enumerate((0.5, 0.6, None, 0.6, 0.7, 0.7, None, 0.1), start=1):
        patience.note(number, accuracy)
        seen.append(patience.waited)
    # Only what is better than ever counts, and a round without an evaluation does not.
    assert seen == [0, 0, 0, 1, 0, 1, 1, 2]
    assert patience.is_over and patience.best_round == 5
    assert not EarlyStopping(0, waited=9).is_over


def settings(small, folder, strategy, **further):
    """Return a run that learns next to nothing, so that it never gets better for long."""
    return {
        **small,
        "strategy": strategy,
        "models": "mlp",
        "max-samples": 240,
        "learning-rate": 1e-9,
        "num-server-rounds": 30,
        "patience": 2,
        "models-dir": str(folder / "models"),
        **further,
    }


@pytest.mark.parametrize("strategy", ["local", "persfl"])
def test_early_stopping_ends_with_a_complete_last_round(strategy, small, tmp_path):
    run = fedkd_flwr.run(settings(small, tmp_path, strategy), output_dir=tmp_path / "run")
    # The first is the best, two are waited for, one more is the last.
    assert list(run.rounds["round"]) == [1, 2, 3, 4]
    assert run.finished and run.summary["stopped_early"]
    assert run.summary["last_round"]["round"] == 4
    assert {path.name for path in (tmp_path / "models").glob("*.safetensors")} == {
        f"{n}.safetensors" for n in range(4)
    }
    if strategy == "persfl":
        last = run.clients[run.clients["round"] == 4]
        assert last["teacher_round"].notna().all()  # its second stage came
    again = fedkd_flwr.resume(run.path)
    assert list(again.rounds["round"]) == [1, 2, 3, 4]


def test_a_continued_run_stops_early_at_the_same_round(small, tmp_path):
    flat = settings(small, tmp_path, "local", **{"num-server-rounds": 3})
    first = fedkd_flwr.run(flat, output_dir=tmp_path / "run")
    assert len(first.rounds) == 3 and not first.summary["stopped_early"]
    assert len(fedkd_flwr.resume(first.path, num_server_rounds=30).rounds) == 4


@pytest.mark.parametrize(
    ("key", "value"), [("patience", 1), ("evaluated-split", "validation"), ("keep-best", True)]
)
def test_results_on_validation_data_need_some(key, value, small):
    with pytest.raises(ConfigError, match=f"{key}.* needs validation data"):
        read_config({**small, "strategy": "local", "client-split": "60/0/40", key: value})


@pytest.mark.parametrize("strategy", ["local", "fedavg"])
def test_models_of_the_best_round_are_kept_beside_the_last(strategy, small, tmp_path):
    flat = settings(small, tmp_path, strategy, **{"patience": 0, "num-server-rounds": 5})
    # Too large a step comes and goes, so that the best round is soon none of the last.
    flat |= {"learning-rate": 1.0, "momentum": 0.0, "keep-best": True, "fraction-train": 0.75}
    run = fedkd_flwr.run(flat, output_dir=tmp_path / "run")
    best = int(run.summary["validation_round"]["round"])
    files = sorted((tmp_path / "models").glob("round-*/*.safetensors"))
    ends = [round_folder(tmp_path / "models", n + 1) for n in (best, 5)]
    kept, last = ({int(f.stem): f for f in files if f.parent < end} for end in ends)
    assert sorted(kept) == sorted(last) == [0, 1, 2, 3]
    assert len(list((tmp_path / "models").glob("round-*/*.safetensors"))) <= 8
    plan = read_config(run.config).run.data_plan
    rows = run.clients.set_index(["round", "partition_id"])["accuracy"]
    for n in range(4):
        data = load_client(plan, n)
        for server_round, files in ((best, kept), (5, last)):
            result = evaluate(load_model(files[n]), data.test_images, data.test_labels)
            assert result.correct / result.total == pytest.approx(rows[server_round, n])
        own = load_model(tmp_path / "models" / f"{n}.safetensors").state_dict()
        torch.testing.assert_close(own, load_model(last[n]).state_dict(), rtol=0, atol=0)
    if strategy == "local":
        assert best < 5  # else nothing above has been asked of an earlier round
