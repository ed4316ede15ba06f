"""What a run config says of its data, and the plan that every machine derives the data from."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, field_validator

from fedkd_flwr.data.catalogue import (
    DATASETS,
    HELD_OUT,
    NO_PUBLIC_SET,
    PARTITIONS,
    DataError,
    Shape,
    dataset_name,
)
from strategies.core.slices import PLACE, Slice, one_of

if TYPE_CHECKING:
    from fedkd_flwr.data.sources import ImageSet


class DataSettings(Slice):
    """Which samples there are, who gets which, and what is public.

    Attributes
    ----------
    dataset : str
        Name of the private data set: a key of `fedkd_flwr.data.catalogue.DATASETS`, or own data
        as ``module:object``.
    own_classes : int
        Key ``num-classes``: K of own data; 0 to find it in the labels.
    own_shape : str
        Key ``image-shape``: shape of a sample of own data, such as ``3,32,32``; empty to find it
        in the data.
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
    own_classes: int = Field(default=0, ge=0)
    own_shape: str = Field(default="", pattern=r"^$|^ *[1-9]\d*( *, *[1-9]\d*)* *$")
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
        return dataset_name(value)

    @field_validator("partition")
    @classmethod
    def _known_partition(cls, value: str) -> str:
        return one_of(value, PARTITIONS)

    @field_validator("public_dataset")
    @classmethod
    def _known_public_dataset(cls, value: str) -> str:
        return value if value in (HELD_OUT, NO_PUBLIC_SET) else dataset_name(value)

    @classmethod
    def key_of(cls, name: str) -> str:
        """Return the flat key of a field; two would be taken for what the properties tell."""
        return {"own_classes": "num-classes", "own_shape": "image-shape"}.get(
            name, super().key_of(name)
        )

    @property
    def num_classes(self) -> int:
        """K, the number of classes of the data set; own data is loaded if nothing else tells."""
        if self.dataset in DATASETS:
            return DATASETS[self.dataset].classes
        return self.own_classes or self._loaded().classes

    @property
    def image_shape(self) -> Shape:
        """Shape of a sample, channels, height and width of an image, found as `num_classes` is."""
        if self.dataset in DATASETS:
            return DATASETS[self.dataset].shape
        if self.own_shape:
            return tuple(int(side) for side in self.own_shape.split(","))
        return tuple(self._loaded().images.shape[1:])

    def _loaded(self) -> "ImageSet":
        from fedkd_flwr.data.sources import load_images  # deferred: it loads PyTorch

        return load_images(self.dataset, self.data_root)

    def check_own(self, shape: Shape, classes: int) -> None:
        """Refuse own data that is not what ``image-shape`` and ``num-classes`` say.

        Raises
        ------
        DataError
            With what is found.
        """
        if shape != self.image_shape:
            raise DataError(f"{self.dataset} has samples {shape}; image-shape is {self.own_shape}")
        if classes > self.num_classes:
            raise DataError(
                f"{self.dataset} has labels up to {classes - 1}; num-classes is {self.own_classes}"
            )

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
