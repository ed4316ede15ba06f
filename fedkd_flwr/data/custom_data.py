"""Custom data and splits, as functions return them: samples of any shape, classes, clients."""

import hashlib
import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkd_flwr.custom_objects.importing import CustomObjectError, find_callable, told
from fedkd_flwr.data.registry import DataError

SIGNATURE = "() -> (samples (n, ...), labels (n,))"

TAKES_MISSING = "sklearn.ensemble:HistGradientBoostingClassifier"
"""A model that takes samples with missing values."""


class OwnArrays(NamedTuple):
    """Custom data, checked: samples (n, ...) float32, missing values NaN, or uint8 images.

    Labels (n,) are int64, at least 0. Clients (n,) are names or whole numbers; None where the data
    do not say.
    """

    samples: Tensor
    labels: Tensor
    clients: NDArray[np.generic] | None = None

    @property
    def digest(self) -> str:
        """The SHA-256 of all content."""
        if self.clients is None:
            return content_digest(self.samples, self.labels)
        named = torch.frombuffer(bytearray(repr(self.clients.tolist()).encode()), dtype=torch.uint8)
        return content_digest(self.samples, self.labels, named)


def call_for_data(name: str) -> OwnArrays:
    """Call a function for its data, which have to be the same wherever it is called."""
    try:
        load = find_callable(name, SIGNATURE)
    except CustomObjectError as error:
        raise DataError(str(error)) from error
    try:
        returned = load()
    # A user's function may raise anything.
    except Exception as error:
        raise DataError(f"{name}() fails: {told(error)}") from error
    return as_data_set(f"{name}()", returned)


def as_data_set(name: str, given: object) -> OwnArrays:
    """Return samples, labels and clients, after checking them."""
    if not isinstance(given, tuple | list) or len(given) not in (2, 3):
        is_data_set = hasattr(given, "__getitem__") and not isinstance(given, tuple | list)
        advice = "; stack what a Dataset holds into one array each" if is_data_set else ""
        raise DataError(
            f"{name} returned a {type(given).__name__}; it should be {SIGNATURE}{advice}"
        )
    _require_one_order(name, given)
    samples = _tensor(name, given[0])
    labels = _tensor(name, given[1], "; numpy.unique(labels, return_inverse=True)[1] numbers words")
    samples, labels = _checked_samples(name, samples, labels), _checked_labels(name, labels)
    return OwnArrays(samples, labels, *(_checked_clients(name, c, labels) for c in given[2:]))


def joined_samples(name: str, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return samples of several files as one array; refuse those of several shapes."""
    shapes = sorted({samples.shape[1:] for samples in parts})
    if len(shapes) > 1:
        raise DataError(f"{name} has samples of several shapes: {shapes}")
    types = sorted({str(samples.dtype) for samples in parts})
    if "uint8" in types and len(types) > 1:
        raise DataError(
            f"{name} has samples of {', '.join(types)}: those of uint8 are pixels from 0 to 255; "
            "write the samples of all files in one type and on one scale"
        )
    return np.concatenate(parts)


def require_float32(numbers: NDArray[Any], name: str) -> None:
    """Refuse numbers (n,), or columns or channels (n, columns, ...), that float32 makes equal.

    Differences of the size of rounding errors in float64 are none.
    """
    columns = numbers[:, None] if numbers.ndim == 1 else np.moveaxis(numbers, 1, -1)
    columns = columns.reshape(-1, columns.shape[-1]).astype(np.float64)
    low, high = np.fmin.reduce(columns), np.fmax.reduce(columns)
    spread = (high - low) / np.maximum(np.abs(low), np.abs(high)).clip(min=1e-30)
    if len(lost := np.flatnonzero((spread > 1e-12) & (spread < 1e-6))):
        raise DataError(
            f"{name} has numbers near {high[lost[0]]:.4g} that differ by less than a millionth of "
            "that, which float32 does not hold: subtract their mean"
        )


def require_complete(samples: Tensor, name: str, model: str) -> None:
    """Refuse missing values, which no network takes."""
    if incomplete := int(samples.isnan().flatten(1).any(dim=1).sum()):
        raise DataError(
            f"{incomplete} of {len(samples)} samples of {name} have missing values, which {model} "
            "does not take: fill them in, leave these samples out, or set models to an estimator "
            f"that takes them, such as {TAKES_MISSING}"
        )


def content_digest(*tensors: Tensor) -> str:
    """Return the SHA-256 of type, shape and content of tensors, to compare pools by."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().cpu().numpy().data)
    return digest.hexdigest()


def _require_one_order(name: str, parts: Sequence[Any]) -> None:
    """Refuse tables and columns of pandas whose rows have other names, since they are lined up."""
    indexes = [part.index for part in parts if hasattr(part, "iloc")]
    if not all(indexes[0].equals(index) for index in indexes):
        raise DataError(
            f"{name} returned tables whose rows have different indexes, so that samples may get "
            "the labels of others: return labels.loc[samples.index], or arrays by .to_numpy()"
        )


def _tensor(name: str, part: Any, advice: str = "") -> Tensor:
    if isinstance(part, np.ma.MaskedArray) and (masked := int(np.ma.getmaskarray(part).sum())):
        raise DataError(
            f"{name} returned an array with {masked} masked values: leave these rows out, or "
            "set masked values of samples to NaN, by .filled(numpy.nan)"
        )
    try:
        if isinstance(part, Tensor):
            return part.detach().cpu()
        array = np.asarray(part)
        # PyTorch takes no negative strides, no other byte order, and warns of read-only memory.
        return torch.as_tensor(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{name} returned a {type(part).__name__} that is no array of numbers{advice}"
        ) from error


def _checked_samples(name: str, samples: Tensor, labels: Tensor) -> Tensor:
    if samples.dim() < 2 or samples[:1].numel() == 0 or labels.shape != samples.shape[:1]:
        advice = ""
        if labels.dim() == 2 and len(labels) == len(samples):
            is_column = labels.shape[1] == 1
            advice = f"; write labels.{'reshape(-1)' if is_column else 'argmax(axis=1) if one-hot'}"
        raise DataError(
            f"{name} returned samples {tuple(samples.shape)} and labels {tuple(labels.shape)}; "
            f"it should be {SIGNATURE}{advice}"
        )
    is_image = samples.dim() == 4 and samples.shape[1] in (1, 3)
    if samples.dtype == torch.uint8 and is_image:
        return samples.contiguous()
    if samples.is_complex():
        raise DataError(f"{name} returned complex samples; models need real numbers")
    rounded = samples.to(torch.float32).contiguous()
    if rounded.isinf().any():
        raise DataError(f"{name} returned samples that are not all finite")
    if samples.itemsize > rounded.itemsize:
        require_float32(samples.numpy(), f"{name}: a column of the samples")
    return rounded


def _checked_labels(name: str, labels: Tensor) -> Tensor:
    if labels.is_floating_point() or labels.is_complex():
        raise DataError(
            f"{name} returned labels of {str(labels.dtype).removeprefix('torch.')}, as of a "
            "regression; classes are whole numbers from 0 on: write labels.astype(int) if these are"
        )
    whole = labels.to(torch.int64)
    if whole.min() < 0:
        raise DataError(f"{name} returned labels that are not all whole numbers from 0 on")
    if whole.max() < 1:
        raise DataError(f"{name} returned labels of one class; a model needs at least two")
    return whole


def _checked_clients(name: str, given: Any, labels: Tensor) -> NDArray[np.generic]:
    clients = np.asarray(given)
    if clients.dtype == object and all(isinstance(client, str) for client in clients.flat):
        clients = clients.astype(str)
    if clients.shape != tuple(labels.shape) or clients.dtype.kind not in "iuU":
        raise DataError(
            f"{name} returned clients {clients.shape} of {clients.dtype}; it should be the name or "
            f"the whole number of a client for each of the {len(labels)} samples"
        )
    return clients


SPLIT_SIGNATURE = "(labels, num_clients, seed) -> list of index arrays"

POSITIONS = "positions"
"""Name of a parameter that a split may have besides: where its samples are in the data set."""


def call_for_partition(
    name: str, labels: NDArray[np.int64], num_clients: int, seed: int, positions: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """Call a function for a split, and check that it returns it at a second call too.

    `positions` (n,) are those of the samples in the data set, for a function with such a parameter.
    """
    try:
        split = find_callable(name, SPLIT_SIGNATURE)
    except CustomObjectError as error:
        raise DataError(f"partition: {error}") from error
    try:
        asks = POSITIONS in inspect.signature(split).parameters
        more = {POSITIONS: positions.copy()} if asks else {}
        returned, again = (list(split(labels.copy(), num_clients, seed, **more)) for _ in range(2))
    # A user's function may raise anything.
    except Exception as error:
        raise DataError(f"partition {name} fails: {told(error)}") from error
    if len(returned) != num_clients:
        raise DataError(
            f"partition {name} returns {len(returned)} index arrays for {num_clients} clients; it "
            f"should be {SPLIT_SIGNATURE}"
        )
    shares = [
        _checked(f"partition {name}: client {client}", share, len(labels))
        for client, share in enumerate(returned)
    ]
    _require_disjoint(name, shares, len(labels))
    if not all(map(np.array_equal, returned, again)):
        raise DataError(
            f"partition {name} returns another split at each call: draw with "
            "numpy.random.default_rng(seed) inside of it"
        )
    return shares


def _checked(owner: str, share: object, num_samples: int) -> NDArray[np.int64]:
    try:
        indices = np.asarray(share)
    except ValueError as error:
        raise DataError(f"{owner} has no array of indices ({error})") from error
    if indices.size == 0:
        raise DataError(f"{owner} has no sample; every client needs some")
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise DataError(
            f"{owner} has an array {indices.shape} of {indices.dtype}; it should be whole numbers "
            "(samples,)"
        )
    if indices.min() < 0 or indices.max() >= num_samples:
        raise DataError(
            f"{owner} has indices from {indices.min()} to {indices.max()}; allowed are 0 to "
            f"{num_samples - 1}"
        )
    return np.sort(indices.astype(np.int64))


def _require_disjoint(name: str, shares: list[NDArray[np.int64]], num_samples: int) -> None:
    owners = np.bincount(np.concatenate(shares), minlength=num_samples)
    if owners.max() <= 1:
        return
    sample = owners.argmax()
    clients = [n for n, share in enumerate(shares) for _ in range((share == sample).sum())]
    raise DataError(
        f"partition {name}: sample {sample} belongs to the clients "
        f"{', '.join(map(str, clients))}; each sample may have one owner"
    )
