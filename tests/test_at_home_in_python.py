"""What Python and notebooks show of runs: cards, figures, models, bars, and how to go on."""

import numpy as np
import pytest
import torch

import fedkd_flwr
from fedkd_flwr.runs import RunDirectoryError

SMALL = {"models": "mlp", "num_clients": 3, "num_server_rounds": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return fedkd_flwr.run(strategy="kt-pfl", output_dir=folder / "kt-pfl", **SMALL)


def test_a_client_model_is_the_one_that_was_evaluated(run):
    last = run.last_evaluations
    for n in range(3):
        data = fedkd_flwr.client_data(run, n)
        classes = run.model(n)(data.test_images).argmax(dim=1)
        assert float((classes == data.test_labels).float().mean()) == pytest.approx(
            last.loc[n, "accuracy"]
        )
        raw = data.samples.images[data.positions[2]]
        assert np.array_equal(run.predict(n, raw), classes)
        assert np.array_equal(run.predict(n, np.asarray(raw)[:, 0]), classes)
    with pytest.raises(ValueError, match=r"client 3 is outside 0\.\.2"):
        run.model(3)
    with pytest.raises(ValueError, match=r"A sample has shape \(28,\), not \(1, 28, 28\)"):
        run.predict(0, np.zeros((5, 28), dtype=np.uint8))


def test_soft_predictions_are_those_of_the_models_on_the_public_samples(run):
    predicted = run.soft_predictions()
    public = fedkd_flwr.client_data(run, 0).public_images
    assert predicted.shape == (3, len(public), 10)
    with torch.no_grad():
        own = torch.softmax(run.model(1)(public), dim=1).numpy()
    np.testing.assert_allclose(predicted[1], own, atol=1e-6)


def test_coefficients_name_receivers_and_givers(run, tmp_path):
    matrix = run.coefficients
    np.testing.assert_array_equal(matrix, run.matrices["coefficients"][-1])
    assert (matrix.index.name, matrix.columns.name) == ("receiver", "giver")
    local = fedkd_flwr.run(strategy="local", output_dir=tmp_path / "local", **SMALL)
    with pytest.raises(ValueError, match="local has no matrix of receivers and givers"):
        _ = local.coefficients


def test_a_run_is_a_card_and_a_figure(run):
    card = run._repr_html_()
    last = run.round_rows[-1]
    for told in ("kt-pfl", "digits", f"{last['accuracy_mean']:.1%}", f"{last['accuracy_min']:.1%}"):
        assert f"<td>{told}</td>" in card
    assert str(run.path) in card
    (line,) = run.plot().axes[0].get_lines()
    assert line.get_ydata().tolist() == run.rounds["accuracy_mean"].tolist()


def test_models_that_no_file_holds_are_refused_in_one_sentence(tmp_path):
    persfl = {**SMALL, "strategy": "persfl", "client_split": "70/10/20"}
    run = fedkd_flwr.run(output_dir=tmp_path / "run", **persfl)
    with pytest.raises(RunDirectoryError, match="run again with models-dir=FOLDER"):
        run.model(0)


def interrupt(row):
    if row["round"] == 1:
        raise KeyboardInterrupt


def test_an_interrupted_run_is_looked_at_and_ended_or_continued(tmp_path, capsys):
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt) as stopped:
        fedkd_flwr.run(output_dir=folder, on_round=interrupt, progress=True, **SMALL)
    (note,) = stopped.value.__notes__
    assert note.startswith("Stopped after round 1 of 2.") and repr(str(folder)) in note
    shown = capsys.readouterr().err
    assert f"Run directory: {folder}\n" in shown and "1/2" in shown and "accuracy=" in shown
    looked_at = fedkd_flwr.load_run(folder)
    assert not looked_at.finished and "1 of 2, not finished" in looked_at._repr_html_()
    ended = fedkd_flwr.resume(looked_at, stop=True)
    assert ended.finished and ended.summary["stopped_early"] and len(ended.rounds) == 1
    longer = fedkd_flwr.resume(ended, num_server_rounds=3)
    assert len(longer.rounds) == 3 and capsys.readouterr().err == ""


def test_a_sweep_of_python_values_is_that_of_its_file(tmp_path):
    grid = {"strategy": ["local", "kt-pfl"], "seed": np.arange(2), "kt_pfl.rho": np.array([0.5])}
    base = {**SMALL, "num_server_rounds": 1}
    runs = fedkd_flwr.sweep(base, grid, tmp_path)
    assert [(run.config["strategy"], run.config["seed"]) for run in runs] == [
        ("local", 0), ("local", 1), ("kt-pfl", 0), ("kt-pfl", 1),
    ]  # fmt: skip
    assert runs[-1].config["kt-pfl.rho"] == 0.5
    again = fedkd_flwr.run_sweep(tmp_path / "sweep.toml", tmp_path, only={"seed": 1})
    assert [run.run_id for run in again] == [runs[1].run_id, runs[3].run_id]
    more = fedkd_flwr.sweep(base, {**grid, "strategy": ["local", "kt-pfl", "fedavg"]}, tmp_path)
    assert [run.run_id for run in more[:4]] == [run.run_id for run in runs]
