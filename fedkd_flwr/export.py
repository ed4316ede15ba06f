"""Personalized models as files, weights with a JSON card beside them, and their use on images."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from fedkd_flwr.config import RunConfig
from fedkd_flwr.custom_objects.importing import is_custom
from fedkd_flwr.data.decoding import Levels, decode_images
from fedkd_flwr.data.folders import class_names, image_files
from fedkd_flwr.data.registry import Shape
from fedkd_flwr.data.scaling import Scaling, scaling_from
from fedkd_flwr.files import now, replacing
from fedkd_flwr.models.build import build_model, checked_custom_model
from fedkd_flwr.models.estimators import EstimatorModel, estimator_to_read, is_estimator
from fedkd_flwr.models.genotype import SupernetSettings
from fedkd_flwr.models.layers import Ensemble
from fedkd_flwr.models.registry import DARTS_MODELS
from fedkd_flwr.training.blending import Blend, BlendedModel
from strategies.core.versions import installed_versions

CONVERSION = {
    "resize": "bilinear, antialiased",
    "gray": "0.299 red + 0.587 green + 0.114 blue, for models of one channel",
}
"""What becomes of an image before it is scaled, besides the card's shape
(`fedkd_flwr.data.decoding`)."""

CARD_KEYS = {"model", "shape", "classes", "partition-id"}
"""What every card tells; those of a run tell more."""


def model_card(
    run: RunConfig,
    run_id: str,
    model_name: str,
    partition_id: int,
    data_path: str,
    scaling: Scaling,
    metrics: Mapping[str, float],
    shared_model: str = "",
) -> dict[str, Any]:
    """Return the metadata that a reader of a model's weights needs."""
    card: dict[str, Any] = {
        "model": model_name,
        "run-id": run_id,
        "date": now(),
        "versions": installed_versions(),
        "shape": list(run.data.image_shape),
        "classes": run.data.num_classes,
        "class-names": class_names(data_path, run.data.num_classes, run.data.label_column),
        "partition-id": partition_id,
        "strategy": run.strategy,
        "dataset": run.data.dataset,
        "partition": run.data.partition,
        "rounds": run.plan.num_server_rounds,
        "seed": run.plan.seed,
        "input": "float32 images as in preprocessing; custom samples unscaled if it is -1..1",
        "preprocessing": {**CONVERSION, **scaling.described()},
        "metrics": dict(metrics),
    }
    if shared_model:
        card["shared-model"] = shared_model
    if not {model_name, shared_model}.isdisjoint(DARTS_MODELS):
        card["supernet"] = asdict(run.models.search_space)
    return card


def save_personalized_model(model: nn.Module, card: Mapping[str, Any], folder: Path) -> Path:
    """Write a model and its card, both completely or not at all."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{card['partition-id']}.safetensors"
    # Clones: the format has no tensors that share memory, as two buffers may.
    tensors = {
        name: value.cpu().clone(memory_format=torch.contiguous_format)
        for name, value in model.state_dict().items()
    }
    # The card is moved into place first: weights that are there have one.
    with replacing(path) as weights, replacing(path.with_suffix(".json")) as described:
        save_file(tensors, weights)
        described.write_text(json.dumps(card, indent=2) + "\n")
        for file in (weights, described):  # the folder may be one that others read
            file.chmod(0o600)
    return path


def round_folder(folder: Path, server_round: int) -> Path:
    """Return where a run's models of one round are, inside the folder of its models."""
    return folder / f"round-{server_round:06d}"


def keep_only_best(folder: Path, partition_id: int, best_round: int) -> None:
    """Remove a client's models of all rounds but the best so far, before it writes another."""
    files = sorted(folder.glob(f"round-*/{partition_id}.safetensors"))
    kept = [file for file in files if _round_of(file) <= best_round][-1:]
    for file in files:
        if file not in kept:
            file.with_suffix(".json").unlink(missing_ok=True)
            file.unlink(missing_ok=True)
            with suppress(OSError):  # others' models are there
                file.parent.rmdir()


def distilled_folder(folder: Path) -> Path:
    """Return where clients put their models after distillation, until the run has chosen."""
    return folder / "distilled"


def is_better(results: Mapping[str, Any], folder: Path, partition_id: int) -> bool:
    """Return whether results on validation data are above those of a client's exported model."""
    try:
        exported = read_card(folder / f"{partition_id}.safetensors")["metrics"]
        return bool(results["validation_accuracy"] > exported["validation_accuracy"])
    except (FileNotFoundError, ValueError, KeyError):
        return False  # nothing to compare


def keep_chosen(folder: Path, is_distilled: bool) -> None:
    """Let models after distillation replace the others, or remove them."""
    aside = distilled_folder(folder)
    # Cards come first, as above.
    for file in sorted(aside.glob("*.*")):
        if is_distilled:
            file.replace(folder / file.name)
        else:
            file.unlink()
    with suppress(OSError):
        aside.rmdir()


def _round_of(file: Path) -> int:
    return int(file.parent.name.removeprefix("round-"))


def read_card(path: str | Path) -> dict[str, Any]:
    """Return the card beside a personalized model."""
    weights = Path(path).expanduser()
    described = weights.with_suffix(".json")
    for file in (weights, described):
        if not file.exists():
            raise FileNotFoundError(f"there is no {file}, which a personalized model needs")
    try:
        card: dict[str, Any] = json.loads(described.read_text())
        lacking = CARD_KEYS - set(card) if isinstance(card, dict) else CARD_KEYS
        if lacking:
            raise ValueError(f"it lacks {', '.join(sorted(lacking))}")
        sizes = [*card["shape"], card["classes"]] if isinstance(card["shape"], list) else [None]
        if not all(type(size) is int and 0 < size < 2**31 for size in sizes):
            raise ValueError(f"shape is {card['shape']!r} and classes is {card['classes']!r}")
    except ValueError as error:
        raise ValueError(f"{described} cannot be read ({error}); export the model again") from None
    return card


def load_model(
    path: str | Path,
    builder: Callable[[Shape, int], nn.Module] | Any = None,
    trusted: Collection[str] | None = None,
) -> nn.Module:
    """Load a personalized model.

    Parameters
    ----------
    path : str or Path
        A ``<partition-id>.safetensors`` file with its card beside it.
    builder : callable, estimator or mapping, optional
        Builder of a custom model, ``(shape, classes) -> nn.Module``, or the class of an estimator,
        or one that is not fitted. A mapping from names to builders, if the card names two custom
        models. Names in a card are never imported, since a card may come from anywhere.
    trusted : collection of str, optional
        Types that the file of an estimator may have, besides those that skops knows to be safe. By
        default those of the `builder` after a fit on random numbers.

    Returns
    -------
    nn.Module
        In evaluation mode; maps float32 images (N, channels, height, width), scaled as the
        card's preprocessing says, to logits (N, classes). For an estimator it is an
        `EstimatorModel`, whose ``estimator`` is the fitted one.

    Raises
    ------
    FileNotFoundError
        If the weights or the card are missing.
    ValueError
        If the model is a custom one and `builder` is left out, if the file has other tensors
        than the model, or types that are not trusted.

    Examples
    --------
    >>> model = fedkd_flwr.load_model("runs/first/models/0.safetensors")
    >>> model(torch.zeros(1, 1, 28, 28)).shape
    torch.Size([1, 10])
    """
    weights = Path(path).expanduser()
    card = read_card(weights)
    search_space = None
    if "supernet" in card:
        settings = {**card["supernet"], "operations": tuple(card["supernet"]["operations"])}
        search_space = SupernetSettings(**settings)
    shape, classes = tuple(card["shape"]), card["classes"]
    custom = [name for name in (card["model"], card.get("shared-model", "")) if is_custom(name)]
    builders = {} if builder is None else builder
    if not isinstance(builders, Mapping):
        builders = dict.fromkeys(custom or [card["model"]], builder)
    for name in custom:
        if name not in builders:
            raise ValueError(
                f"{weights} is a {name}: pass its builder to load_model, or name it to "
                "`fedkd predict` with --builder; names in files are not imported"
            )

    def build(name: str) -> nn.Module:
        builder = builders.get(name)
        if is_estimator(builder):
            return estimator_to_read(builder, math.prod(shape), classes, trusted)
        if builder is not None:
            return checked_custom_model(builder(shape, classes), name, shape, classes)
        return build_model(name, shape, classes, search_space)

    def whole() -> nn.Module:
        model = build(card["model"])
        if "shared-model" in card:
            model = Ensemble(model, build(card["shared-model"]))
        if "safeguard" in card:
            model = BlendedModel(model, build(card["model"]), Blend(**card["safeguard"]))
        return model

    try:
        if not builders:
            require_shapes(whole, weights)
        model = whole()
        model.load_state_dict(load_file(weights))
    except RuntimeError as error:
        told = " ".join(str(error).split())
        raise ValueError(
            f"{weights} does not fit the {card['model']} built for it: {told}"
        ) from error
    for part in model.modules():
        if isinstance(part, EstimatorModel):
            part.read()
    return model.eval()


def require_shapes(build: Callable[[], nn.Module], weights: Path) -> None:
    """Refuse a model with other tensors than its file, before it takes memory."""
    with safe_open(weights, "pt") as file:
        empty = {
            name: torch.empty(file.get_slice(name).get_shape(), device="meta")
            for name in file.keys()  # noqa: SIM118  (no mapping)
        }
    with torch.device("meta"):
        model = build()
    model.load_state_dict(empty, assign=True)


BATCH = 256  # images that are decoded and classified at a time


@dataclass(frozen=True)
class Prediction:
    """What a model says about one image."""

    file: Path
    label: str
    probability: float


def files_at(paths: Sequence[Path]) -> list[Path]:
    """Return the images among some paths: files as they are, and those below folders."""
    found = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"there is no image or folder {path}")
        found += image_files(path) if path.is_dir() else [path]
    if not found:
        raise FileNotFoundError(f"there is no image in {', '.join(map(str, paths))}")
    return found


@torch.inference_mode()
def predict(model_path: Path, files: Sequence[Path], builder: Any = None) -> list[Prediction]:
    """Classify images with a personalized model on the CPU."""
    card, model = read_card(model_path), load_model(model_path, builder)
    shape = tuple(card["shape"])
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ValueError(f"{model_path} takes samples of shape {shape}, which are no images")
    scaled = scaling_from(card.get("preprocessing", {}))
    levels = Levels(**card.get("levels", {}))
    names = card.get("class-names") or [str(k) for k in range(card["classes"])]
    predictions = []
    for start in range(0, len(files), BATCH):
        part = files[start : start + BATCH]
        encoded = [file.read_bytes() for file in part]
        decoded = decode_images(encoded, shape, list(map(str, part)), levels)
        best = torch.softmax(model(scaled(decoded.images)), dim=1).max(dim=1)
        answers = zip(part, best.indices.tolist(), best.values.tolist(), strict=True)
        predictions += [Prediction(file, names[k], probability) for file, k, probability in answers]
    return predictions
