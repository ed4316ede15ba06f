"""What Python and notebooks show of runs: cards, figures, models, bars, and how to go on."""

import re

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedkd_flwr
from fedkd_flwr.cli import app
from fedkd_flwr.config import ConfigError
from fedkd_flwr.runs import RunDirectoryError

SMALL = {"models": "mlp", "num_clients": 3, "num_server_rounds": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return fedkd_flwr.run(SMALL, strategy="kt-pfl", output_dir=folder / "kt-pfl")


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
    with pytest.raises(ValueError, match=r"have shape \(5, 28\), not \(n, 1, 28, 28\)"):
        run.predict(0, np.zeros((5, 28), dtype=np.uint8))
    with pytest.raises(ValueError, match=r"torch.float64, and images of this run are whole"):
        run.predict(0, np.zeros((5, 28, 28)))


def test_soft_predictions_are_those_of_the_models_on_the_public_samples(run):
    predicted = run.soft_predictions()
    public = fedkd_flwr.client_data(run, 0).public_images
    assert predicted.shape == (3, len(public), 10)
    with torch.no_grad():
        own = torch.softmax(run.model(1)(public), dim=1).numpy()
    np.testing.assert_allclose(predicted[1], own, atol=1e-6)
    np.testing.assert_array_equal(predicted, run.soft_predictions(2))
    with pytest.raises(ValueError, match=r"num_server_rounds=1 ends with those of round 1"):
        run.soft_predictions(1)


def test_coefficients_name_receivers_and_givers(run, tmp_path):
    matrix = run.coefficients
    np.testing.assert_array_equal(matrix, run.matrices["coefficients"][-1])
    assert (matrix.index.name, matrix.columns.name) == ("receiver", "giver")
    local = fedkd_flwr.run(strategy="local", output_dir=tmp_path / "local", **SMALL)
    with pytest.raises(ValueError, match="local has no matrix of receivers and givers"):
        _ = local.coefficients


def test_clients_of_passed_arrays_have_their_names(tmp_path, caplog):
    generator = np.random.default_rng(0)
    owners = np.repeat(["ann", "bob", "cem"], 60)
    arrays = generator.normal(size=(180, 4)), np.arange(180) % 3, owners
    base = {"dataset": arrays, "models": "mlp", "num_server_rounds": 1, "public_size": 20}
    run, _ = fedkd_flwr.sweep({**base, "held_out_size": 30}, {"seed": range(2)}, tmp_path)
    assert list(run.coefficients.index) == list(run.coefficients.columns) == ["ann", "bob", "cem"]
    labels = run.plot().axes[0].get_title(), fedkd_flwr.plots.plot_sharing(run).axes[0]
    assert "your arrays" in labels[0] and labels[1].get_xlabel() == "Giver"
    assert [tick.get_text() for tick in labels[1].get_yticklabels()] == ["ann", "bob", "cem"]
    assert sum("Read your arrays: 180 samples" in line for line in caplog.messages) == 1


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


def learned(tmp_path, strategy, **changes):
    settings = {**SMALL, "strategy": strategy, "hypcluster.clusters": 2, "cohort": "off", **changes}
    return fedkd_flwr.run(output_dir=tmp_path / "first", **settings)


@pytest.mark.parametrize("strategy", ["local", "fedavg", "ditto", "kt-pfl", "hypcluster"])
def test_a_new_run_starts_from_what_another_has_learned(strategy, tmp_path):
    first = learned(tmp_path, strategy)
    # One client of three trains in each round, with another optimizer and steps of no length.
    still = {"learning_rate": 1e-30, "kt-pfl.distillation-learning-rate": 1e-30}
    changes = {**still, "fraction-train": 0.3, "optimizer": "adam"}
    folder = tmp_path / "second"
    with pytest.raises(KeyboardInterrupt):
        fedkd_flwr.run(start_from=first, output_dir=folder, on_round=interrupt, **changes)
    second = fedkd_flwr.resume(folder)
    of_both = [run.last_evaluations["accuracy"].tolist() for run in (first, second)]
    assert of_both[0] == of_both[1] and second.config["models"] == "mlp"
    started = {"path": str(first.path), "id": first.run_id, "rounds": 2}
    assert second.description["started_from"] == started


def test_a_sweep_starts_each_run_from_that_of_its_seed(tmp_path):
    local, grid = {**SMALL, "strategy": "local"}, {"seed": range(2)}
    before = [fedkd_flwr.run(output_dir=tmp_path / f"{n}", seed=n, **local) for n in range(2)]
    base = {**local, "start_from": tmp_path / "{seed}"}
    after = fedkd_flwr.sweep(base, grid, tmp_path / "after")
    ids = [run.description["started_from"]["id"] for run in after]
    assert ids == [run.run_id for run in before]
    assert fedkd_flwr.compare(after).table["seeds"].tolist() == [2]
    with pytest.raises(RunDirectoryError, match="a sweep removes those of its finished runs"):
        fedkd_flwr.run(start_from=after[0])


def test_the_command_line_starts_from_a_run_too(tmp_path):
    first, folder = learned(tmp_path, "local"), tmp_path / "second"
    start = ["run", "--start-from", str(first.path), "-c", "num-server-rounds=1"]
    done = CliRunner().invoke(app, [*start, "-c", "learning-rate=0.5", "--output-dir", str(folder)])
    assert done.exit_code == 0, done.output
    config = fedkd_flwr.load_run(folder).config
    assert {**first.config, **config} == config
    differing = {key for key in config if config[key] != first.config[key]}
    folders = {"output-dir", "state-dir"}
    assert differing == {"start-from", "num-server-rounds", "learning-rate", *folders}
    both = CliRunner().invoke(app, [*start, "--resume", str(folder)])
    assert both.exit_code == 1 and "--start-from begins a new one" in both.stderr


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"strategy": "kt-pfl"}, "with another strategy: there it is hypcluster, here kt-pfl"),
        ({"seed": 1}, "with another seed: there it is 0, here 1. Set seed as there"),
        ({"models": "lenet"}, "with another models: there it is mlp, here lenet"),
        ({"num_clients": 4}, "with another num-clients: there it is 3, here 4"),
        ({"partition": "iid"}, "with another partition"),
        (
            {"hypcluster.clusters": 3},
            r"has centers/weights of shape \(3, .*\), and there it is \(2,",
        ),
    ],
)
def test_a_run_does_not_start_from_another_method_architecture_or_client(changes, reason, tmp_path):
    first = learned(tmp_path, "hypcluster")
    with pytest.raises(ConfigError, match=reason):
        fedkd_flwr.run(start_from=first, output_dir=tmp_path / "second", **changes)
    assert not (tmp_path / "second").exists()


def test_a_run_does_not_start_from_one_on_other_samples(tmp_path):
    first = learned(tmp_path, "local")
    file = first.path / "config.json"
    file.write_text(file.read_text().replace(first.description["data"]["split"], "0"))
    reason = f"^A run cannot start from {re.escape(str(first.path))}: its clients had other samples"
    with pytest.raises(RunDirectoryError, match=reason):
        fedkd_flwr.run(start_from=first.path, output_dir=tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_a_run_with_noise_starts_from_no_other(tmp_path):
    first = learned(tmp_path, "local")
    with pytest.raises(ConfigError, match="epsilon is that of one run"):
        fedkd_flwr.run(start_from=first, **{"dp-sgd-noise-multiplier": 1.0})
