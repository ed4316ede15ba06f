"""Random images in the layout of Fashion-MNIST, so that no benchmark downloads anything."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from PIL import Image

from fedkd_flwr.data.catalogue import DATASETS

NAME = "fashion-mnist"
"""The data set that is imitated."""

SOURCE = DATASETS[NAME]
"""Its shape, classes and columns."""


def write_random_images(root: Path, samples: int) -> Path:
    """Write a Parquet data root of random images, and return its one file.

    Parameters
    ----------
    root : Path
        An existing folder.
    samples : int
        Images in all, each of a random class.
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
    """Encode one grey image, (height, width)."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def settings_for(root: Path, model: str, clients: int, **further: Any) -> dict[str, Any]:
    """Return a flat run config of equal clients on random images, on one thread of the CPU."""
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
