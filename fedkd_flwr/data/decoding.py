"""Decode image files to tensors; resize and rescale images."""

import io
import json
import statistics
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedkd_flwr.data.folders import IMAGE_FORMATS
from fedkd_flwr.data.registry import DataError, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL import Image

UNSCALED_MODES = ("I", "F")  # Pillow's modes of images whose black and white are not known

GRAY_MODES = ("1", "L", "LA", "La")
"""Pillow's modes of images without color, besides those of 16 bits."""

GRAY_WEIGHTS = (0.299, 0.587, 0.114)
"""Brightness of red, green and blue (ITU-R BT.601), as image libraries turn color to gray."""

WIDE, TRANSPARENT = "16 bits scaled by the largest number", "alpha channels put on"
"""How the notes on `Levels` begin that were found in all images together."""

MOST_DIFFERENT = 4
"""By how much images may differ in height or width before somebody has to choose a size."""

ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)
"""EXIF's tag of how a camera was held, and its values that exchange height and width."""


@dataclass(frozen=True)
class Levels:
    """What pixels mean beyond eight bits of color.

    `white` is the largest number in images of 16 bits, which becomes 255. `background` is the gray
    behind transparent images: 255, or 0 where their content is light.
    """

    white: int = 65535
    background: int = 255


@dataclass(frozen=True, eq=False)
class DecodedImages:
    """Images (n, channels, height, width) uint8, and how they were brought to this shape."""

    images: Tensor
    levels: Levels
    notes: Sequence[str] = ()
    warning: str = ""

    @property
    def are_leveled_together(self) -> bool:
        """Whether a single image can change the levels of all others."""
        return any(note.startswith((WIDE, TRANSPARENT)) for note in self.notes)

    @property
    def reading(self) -> Tensor:
        """All but the images, as bytes of JSON for a file of tensors."""
        told = {"levels": asdict(self.levels), "notes": self.notes, "warning": self.warning}
        return torch.tensor(list(json.dumps(told).encode()), dtype=torch.uint8)

    @classmethod
    def kept(cls, images: Tensor, reading: Tensor) -> Self:
        """Return the images with their `reading`."""
        told = json.loads(bytes(reading.tolist()))
        return cls(images, Levels(**told.pop("levels")), **told)


@dataclass(frozen=True)
class _Header:
    """What is known of an image before its pixels are decoded; pages count from 1."""

    name: str
    mode: str
    height: int
    width: int
    orientation: int
    is_transparent: bool
    pages: int

    @property
    def is_gray(self) -> bool:
        return self.mode in GRAY_MODES or self.is_wide

    @property
    def is_wide(self) -> bool:
        return self.mode.startswith("I;16")

    @property
    def size(self) -> tuple[int, int]:
        return self.height, self.width


def decode_images(
    encoded: Sequence[bytes],
    shape: Shape,
    names: Sequence[str] | None = None,
    levels: Levels | None = None,
) -> DecodedImages:
    """Decode image files to one shape; errors call them by `names`.

    An empty `shape` stands for the median height and width, in color if any image has color. Levels
    that are not given are found in the images.
    """
    if shape and (len(shape) != 3 or shape[0] not in (1, 3)):
        raise DataError(f"images cannot have the shape {shape}; it is 1 or 3, height and width")
    called = names or [f"image {position}" for position in range(len(encoded))]
    headers = [_header(file, name) for file, name in zip(encoded, called, strict=True)]
    levels = levels or _levels_of(encoded, headers)
    warning = ""
    if not shape and encoded:
        shape, warning = _common_shape(headers)
    images = torch.empty((len(encoded), *shape), dtype=torch.uint8)
    for position, (file, header) in enumerate(zip(encoded, headers, strict=True)):
        image = _decode(file, header, levels)
        images[position] = image if image.shape == shape else convert_images(image[None], shape)[0]
    return DecodedImages(images, levels, _notes(headers, levels, shape), warning)


@contextmanager
def _opened(file: bytes, name: str) -> "Iterator[Image.Image]":
    """Open one file; what Pillow raises while it is open becomes one sentence with its reason."""
    from PIL import Image, UnidentifiedImageError  # deferred: digits are no image files

    try:
        with Image.open(io.BytesIO(file), formats=tuple(IMAGE_FORMATS)) as image:
            yield image
    except DataError:
        raise
    except UnidentifiedImageError as error:
        reason = f"it is none of {', '.join(IMAGE_FORMATS)}" if file else "it is empty"
        raise DataError(f"{name} is no readable image file: {reason}") from error
    # Pillow raises many unrelated kinds of error for a damaged file.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{name} is no readable image file: {reason}") from error


def _header(file: bytes, name: str) -> _Header:
    with _opened(file, name) as image:
        if image.mode in UNSCALED_MODES:
            raise DataError(
                f"{name} has pixels of 32 bits (mode {image.mode}), allowed are 8 bits, or 16 bits "
                "of gray"
            )
        width, height = image.size
        # Pillow turns TIFF files itself.
        is_tiff = image.format == "TIFF"
        orientation = 1 if is_tiff else _orientation(image)
        if orientation in SIDEWAYS:
            height, width = width, height
        pages = getattr(image, "n_frames", 1) if is_tiff else 1
        transparent = image.has_transparency_data
        return _Header(name, image.mode, height, width, orientation, transparent, pages)


def _orientation(image: "Image.Image") -> int:
    # Damaged EXIF data make no image unreadable, and raise errors of many kinds.
    with suppress(Exception):
        return int(image.getexif().get(ORIENTATION, 1))
    return 1


def _levels_of(encoded: Sequence[bytes], headers: Sequence[_Header]) -> Levels:
    """Find the largest number of 16 bits, and whether what transparent images show is light."""
    white, light, shown = 0, 0.0, 0.0
    for file, header in zip(encoded, headers, strict=True):
        if header.is_wide:
            with _opened(file, header.name) as image:
                white = max(white, int(np.asarray(image).max()))
        elif header.is_transparent:
            with _opened(file, header.name) as image:
                pixels = np.asarray(image.convert("RGBA").convert("LA"), dtype=np.float64)
            light += (pixels[..., 0] * pixels[..., 1]).sum()
            shown += pixels[..., 1].sum()
    return Levels(white or 65535, 0 if light > 127.5 * shown else 255)


def _common_shape(headers: Sequence[_Header]) -> tuple[Shape, str]:
    channels = 1 if all(header.is_gray for header in headers) else 3
    heights, widths = zip(*(header.size for header in headers), strict=True)
    height, width = (statistics.median_low(sides) for sides in (heights, widths))
    sizes = Counter(header.size for header in headers)
    if len(sizes) == 1:
        return (channels, height, width), ""
    least, most = (
        chosen(headers, key=lambda header: header.height * header.width) for chosen in (min, max)
    )
    found = (
        f"{len(headers)} images have {len(sizes)} sizes, from {least.height} x {least.width} to "
        f"{most.height} x {most.width}"
    )
    if any(max(sides) > MOST_DIFFERENT * min(sides) for sides in (heights, widths)):
        raise DataError(
            f"{found} ({least.name}, {most.name}), which differ by more than {MOST_DIFFERENT} "
            "times: set image-shape to the shape that all are resized to, such as "
            f"{channels},{height},{width}"
        )
    warning = f"{found} (height x width), and all are resized to the median, {height} x {width}"
    return (channels, height, width), f"{warning}: set image-shape for another"


def _notes(headers: Sequence[_Header], levels: Levels, shape: Shape) -> tuple[str, ...]:
    wide = sum(header.is_wide for header in headers)
    transparent = sum(header.is_transparent for header in headers)
    gray = sum(header.is_gray for header in headers)
    resized = sum(header.size != shape[1:] for header in headers)
    stacks = [header.pages for header in headers if header.pages > 1]
    background = "black" if levels.background == 0 else "white"
    notes = {
        f"{WIDE}, {levels.white}": wide,
        f"{TRANSPARENT} {background}": transparent,
        "gray ones among those in color": gray if gray < len(headers) else 0,
        "resized": resized,
        "later pages of TIFF files left out": sum(stacks) - len(stacks),
    }
    return tuple(f"{note}: {count}" for note, count in notes.items() if count)


def _decode(file: bytes, header: _Header, levels: Levels) -> Tensor:
    """Decode one file to (1 or 3, height, width) uint8, upright, gray where the file is."""
    from PIL import ImageOps

    with _opened(file, header.name) as image:
        if header.orientation != 1:
            ImageOps.exif_transpose(image, in_place=True)
        pixels = _pixels(image, header, levels)
    return torch.from_numpy(pixels).reshape(*pixels.shape[:2], -1).permute(2, 0, 1)


def _pixels(image: "Image.Image", header: _Header, levels: Levels) -> NDArray[Any]:
    from PIL import Image

    if header.is_wide:
        # Pillow would cut what is above 255.
        return np.rint((np.asarray(image) * (255 / levels.white)).clip(max=255)).astype(np.uint8)
    shown = image
    if header.is_transparent:
        shown = image.convert("RGBA")
        behind = Image.new("RGBA", shown.size, (*[levels.background] * 3, 255))
        shown = Image.alpha_composite(behind, shown)
    mode = "L" if header.is_gray else "RGB"
    return np.array(shown if shown.mode == mode else shown.convert(mode))


def convert_images(images: Tensor, shape: Shape) -> Tensor:
    """Bring images (n, 1 or 3, ...) to a shape, uint8: gray or color, resized bilinearly."""
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
