"""Write the bundled digits as image files: a folder for each of three sites, in it one a class.

uv run python -m examples.own_photos photos
uv run fedkd run -c dataset=clients:photos
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SITES = ("north", "south", "east")
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def write_photos(path: str) -> None:
    """Write files such as ``photos/north/seven/0007.png``; the sites take turns."""
    images, labels = load_digits(return_X_y=True)
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = Path(path) / SITES[row % 3] / NAMES[label]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (image.reshape(8, 8) * 15).astype(np.uint8)
        Image.fromarray(pixels).resize((28, 28)).save(folder / f"{row:04d}.png")


if __name__ == "__main__":
    write_photos(sys.argv[1])
