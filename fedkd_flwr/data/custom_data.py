"""Custom data, as a function returns it: samples of any shape, and their classes."""

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkd_flwr.custom_objects.importing import CustomObjectError, find_callable
from fedkd_flwr.data.registry import DataError

SIGNATURE = "() -> (samples (n, ...), labels (n,))"


def call_for_data(name: str) -> tuple[Tensor, Tensor]:
    """Call a function for its data.

    It has to return the same data in the same order wherever it is called. Samples (n, ...) become
    float32, but uint8 images (n, channels, height, width) stay as they are; labels are (n,), int64,
    at least 0. Raises `DataError` if it cannot be imported or called, or returns anything else; in
    one sentence.
    """
    try:
        load = find_callable(name, SIGNATURE)
    except CustomObjectError as error:
        raise DataError(str(error)) from error
    try:
        returned = load()
    # A user's function may raise anything.
    except Exception as error:
        text = " ".join(str(error).split())
        raise DataError(f"{name}() fails: {type(error).__name__}: {text}") from error
    return as_data_set(f"{name}()", returned)


def as_data_set(name: str, given: object) -> tuple[Tensor, Tensor]:
    """Return samples and labels as tensors, after checking them.

    Raises `DataError` if it is no such pair; in one sentence.
    """
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise DataError(f"{name} returned a {type(given).__name__}; it should be {SIGNATURE}")
    samples, labels = (_tensor(name, part) for part in given)
    return _checked_samples(name, samples, labels), _checked_labels(name, labels)


def content_digest(*tensors: Tensor) -> str:
    """Return the SHA-256 of type, shape and content of tensors, 64 hexadecimal digits.

    For example samples and labels of a data set, or public images: two nodes find out by it that
    their pools differ.
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().cpu().numpy().data)
    return digest.hexdigest()


def _tensor(name: str, part: Any) -> Tensor:
    try:
        if isinstance(part, Tensor):
            return part.cpu()
        array = np.asarray(part)
        # PyTorch takes no negative strides and no other byte order.
        return torch.as_tensor(array.astype(array.dtype.newbyteorder("="), "C", copy=False))
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{name} returned a {type(part).__name__} that is no array of numbers"
        ) from error


def _checked_samples(name: str, samples: Tensor, labels: Tensor) -> Tensor:
    if samples.dim() < 2 or samples[:1].numel() == 0 or labels.shape != samples.shape[:1]:
        raise DataError(
            f"{name} returned samples {tuple(samples.shape)} and labels {tuple(labels.shape)}; "
            f"it should be {SIGNATURE}"
        )
    is_image = samples.dim() == 4 and samples.shape[1] in (1, 3)
    if samples.dtype == torch.uint8 and is_image:
        return samples.contiguous()
    if samples.is_complex():
        raise DataError(f"{name} returned complex samples; models need real numbers")
    samples = samples.to(torch.float32).contiguous()
    if not samples.isfinite().all():
        raise DataError(f"{name} returned samples that are not all finite")
    return samples


def _checked_labels(name: str, labels: Tensor) -> Tensor:
    whole = labels.to(torch.int64)
    if labels.is_complex() or not torch.equal(whole.to(labels.dtype), labels) or whole.min() < 0:
        raise DataError(f"{name} returned labels that are not all whole numbers from 0 on")
    if whole.max() < 1:
        raise DataError(f"{name} returned labels of one class; a model needs at least two")
    return whole
