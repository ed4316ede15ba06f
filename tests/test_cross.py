"""Cross-client evaluation: by hand, from exported models, and from stored client state."""

import numpy as np
import pytest
from helpers import change_json
from typer.testing import CliRunner

import fedkd_flwr
from fedkd_flwr.analysis.cross import Cross, cross
from fedkd_flwr.cli import app
from fedkd_flwr.plots import plot_cross
from fedkd_flwr.runs import RunDirectoryError
from fedkd_flwr.runs.checkpoint import remove_checkpoint


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of KT-pFL with exported models, and one of FedAvg without."""
    from tests.conftest import SMALL

    folder = tmp_path_factory.mktemp("runs")
    settings = {**SMALL, "num-server-rounds": 1, "models": "mlp"}
    return {
        name: fedkd_flwr.run(
            {**settings, "strategy": name, "models-dir": models}, output_dir=folder / name
        )
        for name, models in (("kt-pfl", str(folder / "models")), ("fedavg", ""))
    }


def test_correlations_by_hand(tmp_path):
    accuracies = np.array([[0.9, 0.1, 0.5], [0.6, 0.8, 0.5], [0.2, 0.3, 0.7]])
    # Client 0 prefers client 1 (accuracy 0.6 against 0.2). Client 1 prefers client 0 (0.1 against
    # 0.3). On the data of client 2 both others have 0.5.
    coefficients = np.array([[0.5, 0.4, 0.1], [0.4, 0.5, 0.1], [0.1, 0.4, 0.5]])
    crossed = Cross(fedkd_flwr.Run(tmp_path / "run"), accuracies, {"c": coefficients})
    np.testing.assert_allclose(crossed.rank_correlations("c"), [1, -1, np.nan])
    assert crossed.own == pytest.approx(0.8)
    assert crossed.others == pytest.approx((0.1 + 0.5 + 0.6 + 0.5 + 0.2 + 0.3) / 6)
    assert crossed.by_client()["best other"].tolist() == [1, 2, 0]
    assert crossed.by_client()["its accuracy"].tolist() == [0.6, 0.3, 0.5]
    assert "+0.00 on average, above zero for 1 of 2 clients" in crossed.sentence("c")


def test_the_diagonal_equals_the_accuracy_of_the_run(runs):
    run = runs["kt-pfl"]
    crossed = cross(run)
    # The run has exported the models after the last distillation.
    assert crossed.distilled == [0, 1, 2, 3]
    last = run.clients.set_index("partition_id").sort_index()["distilled_accuracy"]
    np.testing.assert_allclose(crossed.accuracies.diagonal(), last)
    # Clients have different classes, so other clients' models are less accurate.
    assert crossed.own > crossed.others
    np.testing.assert_array_equal(
        crossed.coefficients["coefficients"], run.matrices["coefficients"][-1]
    )
    image, coefficients = (axes.images[0] for axes in plot_cross(crossed).axes[:2])
    order = [int(text.get_text()) for text in image.axes.get_yticklabels()]
    drawn = crossed.accuracies.T[np.ix_(order, order)]
    np.testing.assert_array_equal(image.get_array(), drawn)
    assert np.ma.getmaskarray(np.ma.masked_invalid(coefficients.get_array())).diagonal().all()


def test_models_come_from_files_or_stored_state_or_raise_an_error(runs, tmp_path):
    run = runs["kt-pfl"]
    exported = cross(run).accuracies
    change_json(run.path / "config.json", config={"models-dir": ""})
    stored = cross(run.path)
    last = run.clients.set_index("partition_id").sort_index()["accuracy"]
    assert not stored.distilled
    np.testing.assert_allclose(stored.accuracies.diagonal(), last)
    models = run.config["output-dir"].replace("kt-pfl", "models")
    np.testing.assert_array_equal(cross(run.path, models).accuracies, exported)
    with pytest.raises(RunDirectoryError, match="is from another run"):
        cross(runs["fedavg"], models)
    with pytest.raises(RunDirectoryError, match="is not an exported model"):
        cross(run.path, tmp_path)
    remove_checkpoint(run.path)
    with pytest.raises(
        RunDirectoryError, match="neither exported models nor stored state of client 0"
    ):
        cross(run.path)
    with pytest.raises(RunDirectoryError, match="fedavg do not store the evaluated model"):
        cross(runs["fedavg"])


def test_the_command_prints_and_draws(runs, tmp_path):
    models = str(runs["kt-pfl"].path.parent / "models")
    command = ["cross", str(runs["kt-pfl"].path), "--models-dir", models]
    result = CliRunner().invoke(app, [*command, "--figures", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "Mean accuracy: own test data" in result.output
    assert "The models of 4 of 4 clients are those after the last distillation." in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"kt-pfl-cross.png"}
