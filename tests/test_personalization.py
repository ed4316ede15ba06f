"""Personalization of a new client after the training of PersFL."""

import numpy as np
import pytest
import torch
from helpers import write_image_folder
from sklearn.datasets import load_digits
from typer.testing import CliRunner

import fedkd_flwr
from fedkd_flwr.analysis.personalization import personalize
from fedkd_flwr.cli import app
from fedkd_flwr.clients.node import NodeConfigError
from fedkd_flwr.config import ConfigError
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.export import load_model
from fedkd_flwr.runs import RunDirectoryError

SETTINGS = {"strategy": "persfl", "models": "mlp", "momentum": 0.0, "num-server-rounds": 3}
# With this learning rate the loss fluctuates, and clients select different teachers.
SETTINGS |= {"learning-rate": 0.3, "local-epochs": 2}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run in which some client's teacher is not the last global model.

    No client selects the initial model, which is not stored.
    """
    from conftest import SMALL

    folder = tmp_path_factory.mktemp("persfl") / "run"
    run = fedkd_flwr.run({**SMALL, **SETTINGS}, output_dir=folder)
    teachers = run.clients[run.clients["round"] == 3]["teacher_round"]
    assert 0 < teachers.min() < 3
    return run


@pytest.fixture
def own_folder(tmp_path):
    """Images of four digits, one folder per class, as a new client might have them."""
    digits = load_digits()
    chosen = np.concatenate([np.flatnonzero(digits.target == label)[:20] for label in range(4)])
    images = (digits.images[chosen] * 255 / 16).astype(np.uint8)
    return write_image_folder(tmp_path / "own", images, digits.target[chosen])


@pytest.mark.parametrize("partition_id", range(4))
def test_the_data_of_a_participant_gives_its_model(partition_id, finished, tmp_path):
    last = finished.clients[finished.clients["round"] == 3].set_index("partition_id")
    row = last.loc[partition_id]
    joined = personalize(finished, partition_id)
    assert joined.accuracy == row["accuracy"]
    assert joined.imitation == row["lambda"]
    assert joined.temperature == row["temperature"]
    assert joined.teacher_round == row["teacher_round"]
    assert joined.teacher_accuracy == row["teacher_accuracy"]
    assert joined.global_accuracy == row["global_accuracy"]


def test_an_image_folder_can_be_used(finished, own_folder):
    changes = {"persfl.distillation-epochs": 30}
    joined = personalize(finished.path, data_path=own_folder, **changes)
    data = joined.client.data
    assert len(data.train_labels) + len(data.validation_labels) + len(data.test_labels) == 80
    assert set(data.train_labels.tolist()) == {0, 1, 2, 3}
    predictions = joined.model(data.test_images).argmax(dim=1)
    correct = int((predictions == data.test_labels).sum())
    assert joined.accuracy == correct / len(data.test_labels)
    assert joined.accuracy > 0.5


def test_the_images_of_a_patient_stay_together(finished, own_folder):
    """Two images of each digit are one patient's; without a pattern some of them are parted."""
    for number, file in enumerate(sorted(own_folder.rglob("*.png"))):
        file.rename(file.with_name(f"P{number // 2:02d}_{number % 2}.png"))
    alone = personalize(finished.path, data_path=own_folder)
    joined = personalize(finished.path, data_path=own_folder, group_pattern="^(P[0-9]+)_")
    grouped = [len(part) for part in parts_of(joined.client.data)]
    assert sum(grouped) == 80
    assert all(size % 2 == 0 for size in grouped)
    assert grouped != [len(part) for part in parts_of(alone.client.data)]
    with pytest.raises(NodeConfigError, match="not both"):
        personalize(finished.path, 0, own_folder, group_pattern="^P", group_column="patient")
    arguments = ["personalize", str(finished.path), "--data-path", str(own_folder)]
    result = CliRunner().invoke(app, [*arguments, "--group-pattern", "^X"])
    assert result.exit_code == 1
    assert "group-pattern fits 0 of 80 file names" in result.output


def parts_of(data):
    return data.train_labels, data.validation_labels, data.test_labels


def test_another_seed_gives_data_from_outside_the_run(finished):
    """No client of the run has this data."""
    joined = personalize(finished, 1, seed=7)
    same = personalize(finished, 1, seed=7)
    assert joined.accuracy == same.accuracy
    for mine, other in zip(joined.model.parameters(), same.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    theirs = personalize(finished, 1).client.data.train_images
    assert not torch.equal(joined.client.data.train_images[:20], theirs[:20])


def test_settings_replace_those_of_the_run(finished):
    changes = {"persfl.imitation": "0.5", "persfl.temperatures": "25", "persfl.teacher": "last"}
    joined = personalize(str(finished.path), 0, **changes)
    assert (joined.imitation, joined.temperature) == (0.5, 25.0)
    assert joined.teacher_round == 3
    assert joined.teacher_accuracy == joined.global_accuracy


def test_a_saved_model_gives_the_same_predictions(finished, tmp_path):
    joined = personalize(finished, 3)
    path = joined.save(tmp_path / "new" / "models")
    assert path == tmp_path / "new" / "models" / "3.safetensors"
    images = joined.client.data.test_images
    with torch.no_grad():
        assert torch.equal(load_model(path)(images), joined.model.eval()(images))


def test_the_run_directory_does_not_change(finished, tmp_path):
    def content():
        return {path: path.read_bytes() for path in finished.path.rglob("*") if path.is_file()}

    before = content()
    personalize(finished, 0).save(tmp_path)
    assert content() == before


def test_invalid_arguments_raise_a_clear_error(finished, small, tmp_path):
    with pytest.raises(ConfigError, match="give a partition"):
        personalize(finished)
    with pytest.raises(ConfigError, match="no partition 4, only 0 to 3"):
        personalize(finished, 4)
    with pytest.raises(DataError, match="no folder or Parquet file"):
        personalize(finished, data_path=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"did you mean persfl.imitation"):
        personalize(finished, 0, **{"persfl.imitatio": 1})
    with pytest.raises(ConfigError, match="does not fit the model lenet"):
        personalize(finished, 0, models="lenet")
    with pytest.raises(RunDirectoryError, match="holds no run"):
        personalize(tmp_path, 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="cannot be written to"):
        personalize(finished, 0).save(tmp_path / "file")
    other = fedkd_flwr.run({**small, "strategy": "local"}, output_dir=tmp_path / "local")
    with pytest.raises(ConfigError, match="this is a run of local"):
        personalize(other, 0)


def test_missing_or_damaged_global_models_raise_an_error(small, tmp_path):
    run = fedkd_flwr.run({**small, **SETTINGS, "num-server-rounds": 1}, output_dir=tmp_path / "r")
    (stored,) = (run.path / "models").glob("*.safetensors")
    stored.write_bytes(stored.read_bytes()[:100])
    with pytest.raises(RunDirectoryError, match=r"global-000001.safetensors cannot be read"):
        personalize(run, 0)
    stored.unlink()
    with pytest.raises(RunDirectoryError, match="has no stored global models"):
        personalize(run, 0)
