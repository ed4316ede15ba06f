"""Write the bundled digits as a Parquet file with a made-up column of twelve writers.

uv run python -m examples.own_parquet digits.parquet
uv run fedkd run -c dataset=folder:digits.parquet -c client-column=writer
"""

import io
import sys

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet
from sklearn.datasets import load_digits


def png(pixels: np.ndarray) -> dict[str, bytes]:
    """Return an image as the Hugging Face hub stores it: the bytes of a file."""
    file = io.BytesIO()
    Image.fromarray((pixels.reshape(8, 8) * 15).astype(np.uint8)).save(file, format="PNG")
    return {"bytes": file.getvalue()}


def write_digits(path: str) -> None:
    """Write the columns ``image``, ``label`` and ``writer``; 150 rows share a writer."""
    pixels, labels = load_digits(return_X_y=True)
    writers = [f"writer{row // 150:02d}" for row in range(len(labels))]
    images = [png(row) for row in pixels]
    parquet.write_table(pa.table({"image": images, "label": labels, "writer": writers}), path)


if __name__ == "__main__":
    write_digits(sys.argv[1])
