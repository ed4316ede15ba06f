"""Data of a user's own, as a function returns it: samples of any shape, and their classes."""

import numpy as np
import torch
from torch import Tensor

from fedkd_flwr.data.catalogue import DataError
from fedkd_flwr.own import OwnError, find_callable

SIGNATURE = "() -> (samples (n, ...), labels (n,))"


def call_for_data(name: str) -> tuple[Tensor, Tensor]:
    """Call a function for its data.

    Parameters
    ----------
    name : str
        Where it is, as ``module:object``. What it returns has to be the same wherever and
        whenever it is called.

    Returns
    -------
    samples : Tensor
        Shape (n, ...), uint8 images (n, channels, height, width) as they are, all else as float32.
    labels : Tensor
        Shape (n,), int64, at least 0.

    Raises
    ------
    DataError
        If it cannot be imported or called, or returns anything else; in one sentence.
    """
    try:
        load = find_callable(name, SIGNATURE)
    except OwnError as error:
        raise DataError(str(error)) from error
    try:
        returned = load()
    # The function is the user's, and may raise anything.
    except Exception as error:
        text = " ".join(str(error).split())
        raise DataError(f"{name}() fails: {type(error).__name__}: {text}") from error
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise DataError(f"{name}() returns a {type(returned).__name__}; it should be {SIGNATURE}")
    samples, labels = (_tensor(name, part) for part in returned)
    return _checked_samples(name, samples, labels), _checked_labels(name, labels)


def _tensor(name: str, part: object) -> Tensor:
    try:
        return torch.as_tensor(np.asarray(part) if not isinstance(part, Tensor) else part).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{name}() returns a {type(part).__name__} that is no array of numbers"
        ) from error


def _checked_samples(name: str, samples: Tensor, labels: Tensor) -> Tensor:
    if samples.dim() < 2 or samples[:1].numel() == 0 or labels.shape != samples.shape[:1]:
        raise DataError(
            f"{name}() returns samples {tuple(samples.shape)} and labels {tuple(labels.shape)}; "
            f"it should be {SIGNATURE}"
        )
    is_image = samples.dim() == 4 and samples.shape[1] in (1, 3)
    if samples.dtype == torch.uint8 and is_image:
        return samples.contiguous()
    if samples.is_complex():
        raise DataError(f"{name}() returns complex samples, and models take real ones")
    samples = samples.to(torch.float32).contiguous()
    if not samples.isfinite().all():
        raise DataError(f"{name}() returns samples that are not all finite")
    return samples


def _checked_labels(name: str, labels: Tensor) -> Tensor:
    whole = labels.to(torch.int64)
    if labels.is_complex() or not torch.equal(whole.to(labels.dtype), labels) or whole.min() < 0:
        raise DataError(f"{name}() returns labels that are not all whole numbers from 0 on")
    if whole.max() < 1:
        raise DataError(f"{name}() returns labels of one class, and a model needs two")
    return whole
