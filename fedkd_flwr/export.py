"""Personalized models as files: weights in safetensors, and a small JSON card beside them."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file, save_file
from torch import nn

from fedkd_flwr.models import build_model
from fedkd_flwr.models.darts import Genotype, SearchSpace, SupernetSettings

if TYPE_CHECKING:
    from fedkd_flwr.clients.base import PersonalClient


def save_personalized_model(
    client: "PersonalClient", folder: Path, metrics: Mapping[str, float]
) -> Path:
    """Write a client's model and its card.

    Parameters
    ----------
    client : PersonalClient
        Whose `model` is to be written.
    folder : Path
        Gets ``<partition-id>.safetensors`` and ``<partition-id>.json``; made if missing.
    metrics : mapping of str to float
        Results of the model, for the card.

    Returns
    -------
    Path
        The safetensors file.
    """
    run = client.run
    card = {
        "model": client.model_name,
        "shape": list(client.data.shape),
        "classes": client.data.classes,
        "partition-id": client.partition_id,
        "strategy": run.strategy,
        "dataset": run.dataset,
        "partition": run.partition,
        "rounds": run.num_server_rounds,
        "seed": run.seed,
        "input": "float32 images scaled from 0..255 to -1..1",
        "metrics": dict(metrics),
    }
    if client.model_name.startswith("darts"):
        card["supernet"] = asdict(run.search_space.settings)
        card["genotype"] = run.search_space.genotype.to_text()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{client.partition_id}.safetensors"
    tensors = {name: value.contiguous().cpu() for name, value in client.model.state_dict().items()}
    save_file(tensors, path)
    path.with_suffix(".json").write_text(json.dumps(card, indent=2) + "\n")
    return path


def load_model(path: str | Path) -> nn.Module:
    """Load a personalized model.

    Parameters
    ----------
    path : str or Path
        A ``<partition-id>.safetensors`` file with its card beside it.

    Returns
    -------
    nn.Module
        In evaluation mode; maps float32 images (N, channels, height, width) from -1 to 1 to
        logits (N, classes).

    Raises
    ------
    FileNotFoundError
        If the weights or the card are missing.
    """
    weights = Path(path).expanduser()
    card_path = weights.with_suffix(".json")
    for file in (weights, card_path):
        if not file.exists():
            raise FileNotFoundError(f"there is no {file}, which a personalized model consists of")
    card = json.loads(card_path.read_text())
    search_space = None
    if "supernet" in card:
        settings = {**card["supernet"], "operations": tuple(card["supernet"]["operations"])}
        genotype = Genotype.from_text(card["genotype"])
        search_space = SearchSpace(SupernetSettings(**settings), genotype)
    model = build_model(card["model"], tuple(card["shape"]), card["classes"], search_space)
    model.load_state_dict({**model.state_dict(), **load_file(weights)})
    return model.eval()
