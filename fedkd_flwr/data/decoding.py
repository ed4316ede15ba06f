"""Decode image files to tensors; resize and rescale images."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedkd_flwr.data.folders import IMAGE_FORMATS
from fedkd_flwr.data.registry import DataError, Shape

if TYPE_CHECKING:
    from PIL import Image

UNSCALED_MODES = ("I", "F")
"""Pillow's modes of images whose black and white are not known."""

GRAY_WEIGHTS = (0.299, 0.587, 0.114)
"""Brightness of red, green and blue (ITU-R BT.601), as image libraries turn color to gray."""


def decode_images(
    encoded: Sequence[bytes], shape: Shape, names: Sequence[str] | None = None
) -> Tensor:
    """Decode image files (PNG, JPEG, BMP, TIFF or WebP) to one shape.

    Shape (n, channels, height, width), uint8. An empty `shape` stands for that of the first image;
    errors call images by `names`. Raises `DataError` if the shape is no image's, or one of them
    cannot be decoded.
    """
    if shape and (len(shape) != 3 or shape[0] not in (1, 3)):
        raise DataError(f"images cannot have the shape {shape}; it is 1 or 3, height and width")
    images = torch.empty((len(encoded), *shape), dtype=torch.uint8)
    for position, file in enumerate(encoded):
        image = _decode(file, names[position] if names else f"image {position}")
        if not shape:
            shape = tuple(image.shape)
            images = torch.empty((len(encoded), *shape), dtype=torch.uint8)
        images[position] = image if image.shape == shape else convert_images(image[None], shape)[0]
    return images


def _decode(file: bytes, name: str) -> Tensor:
    """Decode one file to (1 or 3, height, width) uint8."""
    from PIL import Image  # deferred: digits are no image files

    try:
        with Image.open(io.BytesIO(file), formats=tuple(IMAGE_FORMATS)) as image:
            mode, pixels = image.mode, _pixels(image)
    # Pillow raises many unrelated kinds of error for a damaged file.
    except Exception as error:
        raise DataError(f"{name} is no readable image file") from error
    if mode in UNSCALED_MODES:
        raise DataError(
            f"{name} has pixels of 32 bits (mode {mode}), allowed are 8 bits, or 16 bits of gray"
        )
    return pixels


def _pixels(image: "Image.Image") -> Tensor:
    """Return the pixels of one image, gray where the file is."""
    if image.mode.startswith("I;16"):
        # Pillow would cut what is above 255. White, 65535, is 257 times 255.
        pixels = np.rint(np.array(image) / 257).astype(np.uint8)
    else:
        pixels = np.array(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    return torch.from_numpy(pixels).reshape(*pixels.shape[:2], -1).permute(2, 0, 1)


def convert_images(images: Tensor, shape: Shape) -> Tensor:
    """Bring images to another shape: gray or color, and resized bilinearly.

    From (n, 1 or 3, any height, any width) to (n, channels, height, width), uint8.
    """
    channels, height, width = shape
    if channels < images.shape[1]:
        weights = torch.tensor(GRAY_WEIGHTS).view(1, 3, 1, 1)
        images = (images * weights).sum(dim=1, keepdim=True).round().to(torch.uint8)
    if images.shape[2:] != (height, width):
        images = functional.interpolate(
            images, (height, width), mode="bilinear", align_corners=False, antialias=True
        )
    return images.expand(-1, channels, -1, -1)


def to_float(images: Tensor) -> Tensor:
    """Turn uint8 images into float32 from -1 (black) to 1 (white).

    To be done on the CPU: a GPU rounds the division otherwise, and the same public set would have
    another hash there. Own data in floating-point numbers stays as it is.
    """
    if images.is_floating_point():
        return images
    return (images / 127.5).sub_(1.0)
