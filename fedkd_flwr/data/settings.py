"""What a run config says of its data, and the plan that every machine derives the data from."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, field_validator

from fedkd_flwr.data.catalogue import (
    DATASETS,
    HELD_OUT,
    NO_PUBLIC_SET,
    PARTITIONS,
    Shape,
    find_source,
)
from strategies.core.slices import PLACE, Slice, one_of


class DataSettings(Slice):
    """Which samples there are, who gets which, and what is public.

    Attributes
    ----------
    dataset : str
        Name of the private data set, a key of `fedkd_flwr.data.catalogue.DATASETS`.
    data_root : str
        Folder with Parquet data sets by hub id; empty for the Hugging Face hub.
    max_samples : int
        Use no more than that many samples of the data set, all classes alike; 0 for all.
    partition : str
        How the samples are dealt out to clients, a key of `PARTITIONS`.
    alpha : float
        Concentration of the `dirichlet` partition.
    classes_per_client : int
        Classes of each client, for `k-classes` and `k-classes-grouped`.
    groups : int
        Groups of clients, for `k-classes-grouped`.
    samples_per_class : int
        Most samples of a class that a client gets; 0 for the paper's number (450 in
        `two-groups`, 300 in `two-classes`, all there are in the `k-classes` splits).
    minimum_size : int
        Fewest samples of a client, for `dirichlet`.
    client_split : str
        Percentages train/validation/test inside each client, as
        `fedkd_flwr.data.splits.read_split` takes them.
    public_dataset : str
        ``held-out`` (an unlabeled part of the data set), ``none``, or another data set.
    held_out_size : int
        Samples held out for the public set.
    """

    dataset: str = "digits"
    data_root: Annotated[str, PLACE] = ""
    max_samples: int = Field(default=0, ge=0)
    partition: str = "k-classes-grouped"
    alpha: float = Field(default=0.5, gt=0)
    classes_per_client: int = Field(default=5, ge=1)
    groups: int = Field(default=2, ge=1)
    samples_per_class: int = Field(default=0, ge=0)
    minimum_size: int = Field(default=20, ge=1)
    client_split: str = "12/0/88"
    public_dataset: str = HELD_OUT
    held_out_size: int = Field(default=200, ge=0)

    @field_validator("dataset")
    @classmethod
    def _known_dataset(cls, value: str) -> str:
        return one_of(value, DATASETS)

    @field_validator("partition")
    @classmethod
    def _known_partition(cls, value: str) -> str:
        return one_of(value, PARTITIONS)

    @field_validator("public_dataset")
    @classmethod
    def _known_public_dataset(cls, value: str) -> str:
        return one_of(value, [HELD_OUT, NO_PUBLIC_SET, *DATASETS])

    @property
    def num_classes(self) -> int:
        """K, the number of classes of the data set."""
        return find_source(self.dataset).classes

    @property
    def image_shape(self) -> Shape:
        """Channels, height and width of the images."""
        return find_source(self.dataset).shape

    @property
    def hub_ids(self) -> list[str]:
        """Names on the hub, or folders in a data root, of the data sets that are not bundled."""
        names = [self.dataset, self.public_dataset]
        found = [DATASETS[name].hub_id for name in names if name in DATASETS]
        return [hub_id for hub_id in found if hub_id]

    @property
    def num_held_out(self) -> int:
        """Samples that leave the data set for the public set, 0 if that lies elsewhere."""
        return self.held_out_size if self.public_dataset == HELD_OUT else 0


@dataclass(frozen=True)
class DataPlan:
    """All that the data of a run depends on; equal plans share one decoded copy.

    Attributes
    ----------
    settings : DataSettings
        Samples, partition and public set.
    num_clients : int
        N.
    seed : int
        Seed of the run.
    device : str
        Where the tensors are to lie.
    """

    settings: DataSettings
    num_clients: int
    seed: int = 0
    device: str = "cpu"
