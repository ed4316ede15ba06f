"""What becomes of an exported model: its card, and new images."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from helpers import client_of
from PIL import Image
from typer.testing import CliRunner

import fedkd_flwr
from fedkd_flwr import export
from fedkd_flwr.cli import app
from fedkd_flwr.clients.messages import Request
from fedkd_flwr.clients.policy import TRUSTED_NODE
from fedkd_flwr.config import read_config
from fedkd_flwr.export import (
    files_at,
    load_model,
    predict,
    read_card,
    round_folder,
    save_personalized_model,
)
from fedkd_flwr.training.loop import count_correct
from strategies.core.versions import installed_versions
from tests.disclosure import NormedNet
from tests.stored_runs import SUPERNET

CARD = {
    "model": "mlp",
    "run-id": "ab12",
    "date": "2026-11-24T10:00:00+00:00",
    "shape": [1, 8, 8],
    "classes": 2,
    "class-names": ["healthy", "ill"],
    "partition-id": 3,
    "strategy": "local",
    "metrics": {"correct": 3, "total": 4},
}


def cli(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    return result.exit_code, result.output


@pytest.fixture
def models(tmp_path):
    """A node's folder with a model of each of two runs."""
    for seed, run_id in enumerate(("ab12", "cd34")):
        torch.manual_seed(seed)
        model = fedkd_flwr.build_model("mlp", (1, 8, 8), 2)
        folder = round_folder(tmp_path / run_id, 30)
        save_personalized_model(model, {**CARD, "run-id": run_id}, folder)
    return tmp_path


def exported(models):
    return round_folder(models / "ab12", 30) / "3.safetensors"


def test_a_card_names_the_run_and_what_the_model_needs(small, tmp_path):
    run = fedkd_flwr.run(small, strategy="local", models_dir=str(tmp_path / "models"),
                         output_dir=tmp_path / "run")  # fmt: skip
    card = read_card(tmp_path / "models/0.safetensors")
    assert len(card["run-id"]) == 32
    assert card["date"].endswith("+00:00")
    assert card["versions"] == installed_versions()
    assert card["preprocessing"]["scale"] == "0..255 to -1..1, float32"
    assert card["metrics"]["round"] == run.summary["rounds"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"shape": [1, 6000, 6000]}, "does not fit the mlp built for it"),
        ({"shape": [1, 2**40, 8]}, "shape is"),
        ({"shape": "1,8,8"}, "shape is"),
        ({"classes": True}, "classes is True"),
    ],
)
def test_a_card_of_another_shape_is_refused_before_a_model_is_built(
    changes, reason, models, monkeypatch
):
    """A card with images of 6000 pixels took 14 GB and four minutes."""
    path = exported(models)
    card = read_card(path)
    path.with_suffix(".json").write_text(json.dumps(card | changes))
    built, build = [], export.build_model

    def on_meta_alone(*arguments):
        built.append(build(*arguments))
        assert all(parameter.is_meta for parameter in built[-1].parameters())
        return built[-1]

    monkeypatch.setattr(export, "build_model", on_meta_alone)
    with pytest.raises(ValueError, match=reason):
        load_model(path)
    assert len(built) <= 1


def test_only_the_owner_reads_a_model_and_its_card(models):
    path = exported(models)
    assert [file.stat().st_mode & 0o077 for file in (path, path.with_suffix(".json"))] == [0, 0]


def test_an_export_that_fails_leaves_the_model_before_it(models, monkeypatch):
    folder = round_folder(models / "ab12", 30)
    before = {file: file.read_bytes() for file in folder.iterdir()}
    monkeypatch.setattr(export.json, "dumps", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_personalized_model(fedkd_flwr.build_model("mlp", (1, 8, 8), 2), CARD, folder)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_a_model_without_a_whole_card_is_refused(models):
    path = exported(models)
    path.with_suffix(".json").write_text('{"model": "ml')
    for text in ('{"model": "ml', "[]", json.dumps({"partition-id": 3})):
        path.with_suffix(".json").write_text(text)
        with pytest.raises(ValueError, match=r"3\.json cannot be read"):
            read_card(path)


@pytest.mark.parametrize(
    ("policy", "best", "is_last", "written"),
    [
        ({}, False, True, "1-ab12/round-000030/0.json"),
        ({}, True, True, "1-ab12/round-000030/0.json"),
        ({}, False, False, None),
        (TRUSTED_NODE, False, True, "0.json"),
    ],
)
def test_a_node_of_its_own_operator_keeps_the_models_of_all_runs_and_rounds(
    policy, best, is_last, written, small, tmp_path
):
    # Enough samples of each class that the node may count them.
    changes = {"max-samples": 600, "strategy": "local", "models": "mlp", "keep-best": best}
    flat = read_config({**small, **changes}).flat()
    node = {"partition-id": 0, "models-dir": str(tmp_path), **policy}
    client = client_of(small, context=Context(1, 1, node, RecordDict(), flat))
    client.session.serve_evaluation(Request(server_round=30, is_last_round=is_last, run_id="ab12"))
    cards = [str(card.relative_to(tmp_path)) for card in tmp_path.rglob("*.json")]
    assert cards == ([written] if written else [])


def test_new_images_are_prepared_as_in_training(models, tmp_path):
    """The expected classes come from the model itself, on images prepared by hand."""
    folder = tmp_path / "images"
    folder.mkdir()
    pixels = np.random.default_rng(1).integers(0, 256, (5, 8, 8), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{number}.png")
    (folder / "notes.txt").write_text("no image")
    path = models / "ab12/round-000030/3.safetensors"
    logits = load_model(path)(torch.from_numpy(pixels[:, None] / 127.5 - 1).float())
    expected = [("healthy", "ill")[k] for k in logits.argmax(dim=1)]
    found = predict(path, files_at([folder]))
    assert [p.label for p in found] == expected
    np.testing.assert_allclose(
        [p.probability for p in found], logits.softmax(1).max(1).values.detach(), rtol=1e-5
    )
    status, output = cli("predict", path, folder / "0.png")
    assert status == 0
    assert output.splitlines()[0] == "file,class,probability"
    assert output.splitlines()[1].startswith(f"{folder / '0.png'},{expected[0]},0.")


def test_new_images_are_turned_and_scaled_as_in_training(own, tmp_path):
    """A photo that is to be turned, of 12 bits or drawn in the alpha channel: as its set was."""
    wide = np.random.default_rng(0).integers(0, 4096, (90, 8, 8), dtype=np.uint16)
    wide[0, 0, 0] = 4095
    for n, pixels in enumerate(wide):
        (tmp_path / f"photos/{n % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / f"photos/{n % 2}/{n:02d}.png")
    settings = {**own, "dataset": f"folder:{tmp_path / 'photos'}", "strategy": "local"}
    folders = {"models_dir": str(tmp_path / "models"), "output_dir": tmp_path / "run"}
    fedkd_flwr.run(settings, **folders)
    model = tmp_path / "models/0.safetensors"
    assert json.loads(model.with_suffix(".json").read_text())["levels"]["white"] == 4095
    upright = np.rint(wide[1] * (255 / 4095)).astype(np.uint8)
    turned = Image.fromarray(np.ascontiguousarray(np.rot90(upright)))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.png", exif=exif)
    Image.fromarray(wide[1]).save(tmp_path / "wide.png")
    Image.fromarray(upright).save(tmp_path / "upright.png")
    files = [tmp_path / f"{name}.png" for name in ("upright", "turned", "wide")]
    assert len({p.probability for p in predict(model, files)}) == 1


def test_a_custom_model_predicts_if_its_builder_is_named(tmp_path):
    name, shape = "examples.own_model:TinyNet", (1, 28, 28)
    card = {**CARD, "model": name, "shape": list(shape)}
    path = save_personalized_model(fedkd_flwr.build_model(name, shape, 2), card, tmp_path)
    Image.fromarray(np.zeros((28, 28), dtype=np.uint8)).save(tmp_path / "0.png")
    status, output = cli("predict", path, tmp_path / "0.png")
    assert status == 1 and "with --builder" in output
    status, output = cli("predict", path, tmp_path / "0.png", "--builder", name)
    assert status == 0 and output.splitlines()[1].startswith(f"{tmp_path / '0.png'},")


def test_a_model_without_images_is_refused_in_one_line(models, tmp_path):
    path = models / "ab12/round-000030/3.safetensors"
    assert cli("predict", path, tmp_path / "nowhere") == (
        1,
        f"Error: there is no image or folder {tmp_path / 'nowhere'}\n",
    )
    path.with_suffix(".json").write_text(json.dumps({**CARD, "shape": [64]}))
    assert cli("predict", path, __file__)[0] == 1


NORMED = "tests.disclosure:NormedNet"
PAIR = {"learning-rate": 0.05, "client-split": "40/10/50", "fedapen.adaptability-rate": 0.5}


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ("kt-pfl", {}),
        ("fedproto", {"safeguard": "choose"}),
        ("fedkma", {**SUPERNET, "max-samples": 150}),
        *((strategy, {"models": "mlp", "feature-width": 32}) for strategy in ("local", "fedavg")),
        *(
            (name, {f"{name}.predict": predict, f"{name}.feature-width": 12})
            for name in ("fedproto", "fedtgp")
            for predict in ("head", "prototype")
        ),
        *(
            (name, {**PAIR, **changes})
            for name in ("fedapen", "fedmrl")
            for changes in (
                {},
                {"feature-width": 20} if name == "fedapen" else {"fedmrl.shared-width": 16},
                {"models": f"mlp,{NORMED}", f"{name}.shared-model": NORMED},
                {"safeguard": "blend"},
                {"fine-tune-epochs": 1},
            )
        ),
    ],
)
def test_exported_models_answer_as_they_were_evaluated(strategy, changes, small, tmp_path):
    """Projections and shared models are in the file: nothing else is needed to predict."""
    settings = {**small, **changes, "strategy": strategy, "models-dir": str(tmp_path / "models")}
    finished = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    rows = finished.clients[finished.clients["round"] == 2].set_index("partition_id")
    counted = "safeguarded_correct" if "safeguard" in changes else "correct"
    for n in (0, 1):
        card = json.loads((tmp_path / "models" / f"{n}.json").read_text())
        shared = changes.get(f"{strategy}.shared-model", "mlp")
        assert card["model"] == rows.loc[n, "model"] and card.get("shared-model", "mlp") == shared
        model = load_model(
            tmp_path / "models" / f"{n}.safetensors", NormedNet if NORMED in str(changes) else None
        )
        data = fedkd_flwr.client_data(finished, n)
        with torch.inference_mode():
            found = count_correct(model(data.test_images), data.test_labels)
        column = "distilled_correct" if "evaluated" in card else counted
        assert found.correct == rows.loc[n, column]
        if counted == "correct":
            assert found.correct == card["metrics"]["correct"]
            assert found.loss == pytest.approx(card["metrics"]["loss"], rel=1e-3)
