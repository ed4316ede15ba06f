"""Early stopping: when it ends a run, its last round, and continuation."""

import pytest
import torch

import fedkd_flwr
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.data.clients import load_client
from fedkd_flwr.export import load_model, round_folder
from fedkd_flwr.training.loop import evaluate
from strategies.core.early_stopping import EarlyStopping


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
    with pytest.raises(ConfigError, match=f"{key}.* needs accuracy on validation"):
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
