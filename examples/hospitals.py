"""Five hospitals' image folders and a public one, to rehearse a deployment with.

The images are scikit-learn's digits 0 to 4, enlarged to 32×32 pixels. One hospital alone has the
last class; the others have an empty folder for it, since the names of folders number the classes.

uv run python -m examples.hospitals /tmp/hospitals
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

CLASSES = ("0-zero", "1-one", "2-two", "3-three", "4-four")
HOSPITALS = (
    (35, 35, 30, 30, 0),
    (35, 35, 20, 20, 0),
    (20, 20, 35, 35, 0),
    (20, 20, 20, 20, 60),
    (25, 25, 25, 25, 0),
)
"""Images of each class, by hospital."""
PUBLIC = (40, 40, 40, 40, 40)
"""Public images of each class; their folder has no classes."""


def write(images: NDArray[np.float64], folder: Path, first: int = 0) -> None:
    """Write images (n, 8, 8) with values from 0 to 16 as PNG files, numbered from `first`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, pixels in enumerate(images, first):
        image = Image.fromarray((pixels * 15.9).astype(np.uint8)).resize((32, 32))
        image.save(folder / f"{number:03}.png")


def main(root: Path) -> None:
    """Write `hospital-0` to `hospital-4` and `public` into a folder."""
    digits = load_digits()
    for label, name in enumerate(CLASSES):
        images = digits.images[digits.target == label]
        start = PUBLIC[label]
        write(images[:start], root / "public", first=label * start)
        for hospital, counts in enumerate(HOSPITALS):
            taken = images[start : start + counts[label]]
            write(taken, root / f"hospital-{hospital}" / name)
            start += counts[label]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
