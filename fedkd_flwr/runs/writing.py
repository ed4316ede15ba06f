"""How the files of a run are written, synced, and brought back to an earlier round."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedkd_flwr.files import sync, write_text
from fedkd_flwr.memory import round_of
from fedkd_flwr.runs.checkpoint import forget_checkpoints_after
from fedkd_flwr.runs.reading import MATRICES, Run
from strategies.core.evaluations import Row


def begin_to_continue(run: Run, sizes: Mapping[str, int]) -> None:
    """Drop what is newer than the checkpoint, and record how the run is continued."""
    completed = run.until or 0
    # In this order, a power cut in between leaves a run that continues after the same round.
    forget_checkpoints_after(run.path, completed)
    (run.path / "summary.json").unlink(missing_ok=True)
    sync(run.path)
    write_json(run.path / "config.json", run.description)
    for name, size in sizes.items():
        os.truncate(run.path / name, size)
    for model in global_models(run.path):
        if round_of(model) > completed:
            model.unlink()


def sync_round(run_directory: Path, server_round: int, appended: Iterable[str]) -> None:
    """Wait until the files of a round, and their names, are on the disk."""
    model = global_model_file(run_directory, server_round)
    folders = (run_directory, run_directory / MATRICES, run_directory / "models")
    files = (run_directory / name for name in appended)
    for path in (*files, *filter(Path.exists, (model, *folders))):
        sync(path)


def global_model_file(run_directory: Path, server_round: int) -> Path:
    """Return the file of the global model of a round."""
    return run_directory / "models" / f"global-{server_round:06d}.safetensors"


def global_models(run_directory: Path) -> list[Path]:
    """Return the files of the global models that a run has stored, in the order of rounds."""
    return sorted((run_directory / "models").glob("global-*.safetensors"))


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object durably."""
    write_text(file, json.dumps(content, indent=2, allow_nan=False) + "\n", durable=True)


def as_lines(rows: Iterable[Row]) -> str:
    """Return rows as JSON lines; NaN and infinite losses become null."""
    return "".join(json.dumps(_finite(row), allow_nan=False) + "\n" for row in rows)


def _finite(row: Mapping[str, Any]) -> Row:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }
