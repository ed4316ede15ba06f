"""Random images in the format of Fashion-MNIST, so that no benchmark downloads data."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from PIL import Image

from fedkd_flwr.data.registry import DATASETS

NAME = "fashion-mnist"
"""The imitated data set."""

SOURCE = DATASETS[NAME]
"""Image shape, number of classes and column names."""


def write_random_images(root: Path, samples: int) -> Path:
    """Write a data root with one Parquet file of random images, and return that file.

    Parameters
    ----------
    root : Path
        An existing folder.
    samples : int
        Number of images; each has a random class.
    """
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (samples, *SOURCE.shape[1:]), dtype=np.uint8)
    table = pa.table(
        {
            SOURCE.image_column: [{"bytes": png(image), "path": None} for image in pixels],
            SOURCE.label_column: generator.integers(0, SOURCE.classes, samples).tolist(),
        }
    )
    file = root / SOURCE.hub_id / "train.parquet"
    file.parent.mkdir(parents=True)
    pyarrow.parquet.write_table(table, file)
    return file


def png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """Encode one grayscale image, (height, width)."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def settings_for(root: Path, model: str, clients: int, **further: Any) -> dict[str, Any]:
    """Return a flat run config for clients of equal size, on random images and one CPU thread."""
    return {
        "dataset": NAME,
        "data-root": str(root),
        "partition": "iid",
        "client-split": "75/0/25",
        "models": model,
        "num-clients": clients,
        "device": "cpu",
        "torch-threads": 1,
        **further,
    }
