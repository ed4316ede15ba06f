"""Data: data sets, their splits over clients, the public set, and what one client holds."""

from fedkd_flwr.data.clients import (
    ClientData,
    DataSettings,
    check_data,
    client_indices,
    hash_of_public_pool,
    load_client,
    public_pool,
    split_client,
)
from fedkd_flwr.data.partitioners import PARTITIONS, partition_indices
from fedkd_flwr.data.public import public_hash, public_images, public_subset, split_public
from fedkd_flwr.data.sources import (
    DATASETS,
    DataError,
    ImageSet,
    load_images,
    load_labels,
    load_own_data,
    to_float,
)

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "ClientData",
    "DataError",
    "DataSettings",
    "ImageSet",
    "check_data",
    "client_indices",
    "hash_of_public_pool",
    "load_client",
    "load_images",
    "load_labels",
    "load_own_data",
    "partition_indices",
    "public_hash",
    "public_images",
    "public_pool",
    "public_subset",
    "split_client",
    "split_public",
    "to_float",
]
