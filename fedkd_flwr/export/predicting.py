"""A personalized model used on new images, as its card says."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedkd_flwr.data.decoding import Levels, decode_images
from fedkd_flwr.data.folders import image_files
from fedkd_flwr.data.scaling import scaling_from
from fedkd_flwr.export.files import load_model, read_card

BATCH = 256
"""Images that are decoded and classified at a time."""


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
