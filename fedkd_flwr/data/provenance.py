"""What a run directory records of its data: digests of content, and who holds which samples."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.data.clients import client_indices, images_of
from fedkd_flwr.data.custom_data import content_digest
from fedkd_flwr.data.natural_split import names_of_clients, owners_of
from fedkd_flwr.data.registry import BY_COLUMN, BY_FILE, DATASETS, HELD_OUT, NO_PUBLIC_SET
from fedkd_flwr.data.settings import DataPlan
from fedkd_flwr.data.sources import load_images


@dataclass(frozen=True)
class DataRecord:
    """What a run directory records of its data."""

    digests: dict[str, str]
    split: list[dict[str, Any]]

    @classmethod
    def of(cls, plan: DataPlan) -> "DataRecord":
        """Return the record of a run's data."""
        return cls(data_digests(plan), split_record(plan))


def data_digests(plan: DataPlan) -> dict[str, str]:
    """Return SHA-256 digests by which another split, or other content of own data, is noticed."""
    settings = plan.settings
    digests = {"split": _digest_of_indices(client_indices(plan))}
    if settings.dataset not in DATASETS:
        private = images_of(settings)
        digests["dataset"] = content_digest(private.images, private.labels)
    if settings.public_dataset not in (*DATASETS, HELD_OUT, NO_PUBLIC_SET):
        name, data_format = settings.public_dataset, settings.public_data_format
        public = load_images(name, settings.data_root, data_format)
        digests["public-dataset"] = content_digest(public.images, public.labels)
    return digests


def split_record(plan: DataPlan) -> list[dict[str, Any]]:
    """Return a line for each client: how many samples it holds, and a digest of which."""
    rows: list[dict[str, Any]] = [
        {"partition_id": n, "samples": len(indices), "sha256": _digest_of_indices([indices])}
        for n, indices in enumerate(client_indices(plan))
    ]
    if plan.settings.partition in (BY_COLUMN, BY_FILE):
        names = owners_of(plan.settings).names
        of_clients = names_of_clients(plan.settings, plan.num_clients, plan.seed)
        for row, own in zip(rows, of_clients, strict=True):
            row["values"] = [names[n] for n in own]
    return rows


def _digest_of_indices(shares: list[NDArray[np.int64]]) -> str:
    digest = hashlib.sha256()
    for share in shares:
        digest.update(len(share).to_bytes(8, "little"))
        digest.update(share.astype("<i8").tobytes())
    return digest.hexdigest()
