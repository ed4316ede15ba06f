"""The data settings of a run, and the plan from which every machine derives the data."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from fedkd_flwr.custom_objects.importing import CustomObjectError, find_custom, is_of_this_process
from fedkd_flwr.data.registry import (
    BY_COLUMN,
    BY_FILE,
    CLIENTS,
    DATASETS,
    HELD_OUT,
    HUB,
    MOST_CLASSES,
    ON_DISK,
    SYMMETRIC,
    DataError,
    DataFormat,
    Shape,
    dataset_name,
    hub_id_of,
    partition_name,
    public_name,
)
from strategies.core.settings_groups import (
    ANY_ON_NODES,
    DEFAULT_ON_NODES,
    NO_EFFECT_ON_RESULTS,
    SettingsGroup,
    Words,
    fitting,
    kebab_case,
)

AUTO = "auto"  # the value of settings that depend on the data set

AS_PRIVATE = "as-private"  # the public-scaling of samples that are scaled like private ones

BENCHMARK_SPLIT, OWN_SPLIT = "12/0/88", "70/10/20"
"""What ``client-split = auto`` stands for, with a built-in data set and with own data."""

SPLITS_THAT_READ = {
    "alpha": ("dirichlet", "dirichlet-clients"),
    "minimum-size": ("dirichlet", "dirichlet-clients"),
    "size-sigma": ("dirichlet-clients",),
    "classes-per-client": ("k-classes", "k-classes-grouped"),
    "class-proportions": ("k-classes", "k-classes-grouped"),
    "groups": ("k-classes-grouped",),
    "samples-per-class": ("two-groups", "two-classes", "k-classes", "k-classes-grouped"),
}
"""Settings that only some values of ``partition`` read."""

OF_PUBLIC = ("image-column", "feature-columns")
OF_OWN_DATA = (*OF_PUBLIC, "label-column", "num-classes", "image-shape")
"""Settings that built-in data sets do not read, and those of them that own public data do."""


class DataSettings(SettingsGroup):
    """Which samples there are, who gets which, and what is public."""

    dataset: Annotated[str, AfterValidator(dataset_name), ANY_ON_NODES] = "digits"
    """The private data set: a built-in name, or custom data as ``hf:ORG/NAME``, ``folder:PATH``,
    ``clients:PATH`` with a folder or file of each client, or ``module:object``."""
    image_column: Annotated[str, DEFAULT_ON_NODES] = ""
    """Column of the images in custom data; empty to find it."""
    label_column: Annotated[str, DEFAULT_ON_NODES] = ""
    """Column of the labels in custom data, whole numbers or words; empty to find it."""
    feature_columns: Annotated[Words, DEFAULT_ON_NODES] = ()
    """Columns of numbers that make a sample, in this order; empty for all columns of numbers in a
    table without images."""
    configured_classes: Annotated[int, ANY_ON_NODES] = Field(default=0, ge=0, le=MOST_CLASSES)
    """Number of classes of custom data; 0 for the largest label plus one."""
    configured_shape: Annotated[
        str,
        fitting(r"( *[1-9]\d*( *, *[1-9]\d*)* *)?", "numbers above 0, such as 3,32,32"),
        ANY_ON_NODES,
    ] = ""
    """Shape of a sample of custom data, such as ``3,32,32``, to which images are resized; empty to
    find it, which for images of several sizes is their median."""
    data_root: Annotated[str, NO_EFFECT_ON_RESULTS] = ""
    """Folder with Parquet data sets by hub id; empty for the Hugging Face hub."""
    input_scaling: Annotated[
        Literal["auto", "symmetric", "per-pixel", "per-channel"], ANY_ON_NODES
    ] = "auto"
    """How samples are scaled. ``symmetric`` brings images to -1..1 and leaves all other numbers as
    they are; ``per-pixel`` and ``per-channel`` subtract the mean of each pixel or channel of the
    data set and divide by its standard deviation. ``auto`` is ``symmetric`` for images; of all
    other data each column, or channel, is standardized by the training samples of all clients.
    Nodes with their own tables take the public set instead, or their ``input-statistics``."""
    max_samples: Annotated[int, ANY_ON_NODES] = Field(default=0, ge=0)
    """Maximum number of samples of the data set, drawn from all classes alike; 0 for all."""
    partition: Annotated[str, AfterValidator(partition_name), ANY_ON_NODES] = "k-classes-grouped"
    """How samples are split over clients: a built-in split, ``by-column``, ``by-file`` (with
    ``clients:PATH``), or a custom function as ``module:object``."""
    client_column: Annotated[str, DEFAULT_ON_NODES] = ""
    """Column of the data set whose values tell which client has a row, such as ``writer``. It sets
    `partition` to ``by-column``; ``num-clients = 0`` then makes a client of each value."""
    alpha: Annotated[float, ANY_ON_NODES] = Field(default=0.5, gt=0)
    """Concentration, for `dirichlet` and `dirichlet-clients`: the smaller, the more classes differ
    between clients."""
    size_sigma: Annotated[float, ANY_ON_NODES] = Field(default=0.0, ge=0, le=100)
    """Standard deviation of the logarithm of the clients' sizes, for `dirichlet-clients`; 0 for
    equal sizes."""
    classes_per_client: Annotated[int, ANY_ON_NODES] = Field(default=5, ge=1)
    """Classes of each client, for `k-classes` and `k-classes-grouped`."""
    class_proportions: Annotated[Literal["equal", "random"], ANY_ON_NODES] = "equal"
    """A client's samples of its classes, for `k-classes` and `k-classes-grouped`: ``equal``
    numbers, or ``random`` proportions. Clients' totals are equal either way."""
    groups: Annotated[int, ANY_ON_NODES] = Field(default=2, ge=1)
    """Groups of clients, for `k-classes-grouped`."""
    samples_per_class: Annotated[int, ANY_ON_NODES] = Field(default=0, ge=0)
    """Most samples of a class that a client gets, in the mean over its classes where they are
    ``random``; 0 for the paper's number (450 in `two-groups`, 300 in `two-classes`, all there are
    in the `k-classes` splits)."""
    minimum_size: Annotated[int, ANY_ON_NODES] = Field(default=20, ge=1)
    """Minimum number of samples of a client, for `dirichlet` and `dirichlet-clients`."""
    client_split: Annotated[str, ANY_ON_NODES] = AUTO
    """Percentages train/validation/test inside each client, such as ``70/10/20``; with
    alternatives, of which each client gets one at random, as in ``10|30|40/10/50``. What is missing
    to 100 is not used. ``auto`` is ``70/10/20`` for own data, and ``12/0/88`` for built-in data
    sets, which as benchmarks need few training images."""
    evaluated_split: Annotated[Literal["test", "validation"], ANY_ON_NODES] = "test"
    """The split that results are measured on: ``test``, or ``validation`` where a run must not read
    test data, as in a search for settings."""
    public_dataset: Annotated[str, AfterValidator(public_name), ANY_ON_NODES] = HELD_OUT
    """``held-out`` (an unlabeled part of the data set), ``none``, or another data set."""
    held_out_size: Annotated[int, ANY_ON_NODES] = Field(default=200, ge=0)
    """Samples held out for the public set."""
    public_scaling: Annotated[Literal["as-private", "raw"], ANY_ON_NODES] = "as-private"
    """How public images are scaled: ``as-private``, or ``raw``, which leaves pixels at 0 to 255
    whatever `input_scaling` is, as KT-pFL's released code does."""

    def resolved(self) -> "DataSettings":
        """Return the settings with those filled in that ``auto`` leaves to a built-in data set."""
        if self.dataset not in DATASETS:
            return self
        update = {"client_split": self.split}
        if self.input_scaling == AUTO:
            update["input_scaling"] = SYMMETRIC
        return self.model_copy(update=update)

    @property
    def split(self) -> str:
        """`client_split` in percent, whatever ``auto`` stands for."""
        if self.client_split != AUTO:
            return self.client_split
        return BENCHMARK_SPLIT if self.dataset in DATASETS else OWN_SPLIT

    @property
    def unread(self) -> list[str]:
        """The keys that are set, and that the data set does not read."""
        if self.dataset not in DATASETS:
            return []
        is_described = self.public_dataset.startswith((HUB, *ON_DISK))
        return [key for key in self._changed(OF_OWN_DATA) if key not in is_described * OF_PUBLIC]

    @property
    def unread_by_split(self) -> list[str]:
        """The keys that are set, and that the partition does not read."""
        changed = self._changed(SPLITS_THAT_READ)
        return [key for key in changed if self.partition not in SPLITS_THAT_READ[key]]

    def _changed(self, keys: Iterable[str]) -> list[str]:
        values, fields = self.flat(), self.fields_by_key()
        return [key for key in keys if values[key] != fields[key].default]

    @model_validator(mode="before")
    @classmethod
    def _natural_partition(cls, values: Any) -> Any:
        """Let a column or files of clients decide the partition, whatever the default is."""
        if isinstance(values, dict) and (
            values.get("client_column") or values.get(kebab_case("client_column"))
        ):
            return {**values, "partition": BY_COLUMN}
        if isinstance(values, dict) and str(values.get("dataset", "")).startswith(CLIENTS):
            return {**values, "partition": BY_FILE}
        return values

    @classmethod
    def key_of(cls, name: str) -> str:
        """Return the flat key of a field; two keys have the names of properties."""
        return {"configured_classes": "num-classes", "configured_shape": "image-shape"}.get(
            name, super().key_of(name)
        )

    @property
    def num_classes(self) -> int:
        """K, the number of classes; custom data are loaded if ``num-classes`` is not set."""
        if self.dataset in DATASETS:
            return DATASETS[self.dataset].classes
        from fedkd_flwr.data.sources import count_classes  # deferred: it loads PyTorch

        return self.configured_classes or count_classes(
            self.dataset, self.data_root, self.data_format
        )

    @property
    def image_shape(self) -> Shape:
        """Shape of a sample, channels, height and width of an image, found as `num_classes` is."""
        if self.dataset in DATASETS:
            return DATASETS[self.dataset].shape
        if self.configured_shape:
            return self.data_format.shape
        from fedkd_flwr.data.sources import load_images  # deferred: it loads PyTorch

        return tuple(load_images(self.dataset, self.data_root, self.data_format).images.shape[1:])

    @property
    def data_format(self) -> DataFormat:
        """The format of custom private data, as the config describes it."""
        sides = [int(side) for side in self.configured_shape.split(",") if side]
        return DataFormat(
            self.image_column,
            self.label_column,
            tuple(sides),
            self.configured_classes,
            feature_columns=self.feature_columns,
            client_column=self.client_column,
        )

    @property
    def public_data_format(self) -> DataFormat:
        """The format of custom public data: images get the private shape, tables the columns."""
        shape = self.image_shape if len(self.image_shape) == 3 else ()
        columns = self.feature_columns
        if not (columns or self.configured_shape or self.dataset in DATASETS):
            from fedkd_flwr.data.sources import load_images  # deferred: it loads PyTorch

            columns = load_images(self.dataset, self.data_root, self.data_format).columns
        return replace(
            self.data_format, shape=shape, classes=0, labeled=False, feature_columns=columns
        )

    def check_custom_data(self, shape: Shape, classes: int) -> None:
        """Refuse custom data that contradict ``image-shape`` or ``num-classes``."""
        if shape != self.image_shape:
            raise DataError(
                f"{self.dataset} has samples {shape}; image-shape is {self.configured_shape}"
            )
        if classes > self.num_classes:
            raise DataError(
                f"{self.dataset} has labels up to {classes - 1}; "
                f"num-classes is {self.configured_classes}"
            )

    @property
    def hub_ids(self) -> list[str]:
        """Names on the hub, or folders in a data root, of the data sets that are not bundled."""
        names = (self.dataset, self.public_dataset)
        return [hub_id for hub_id in map(hub_id_of, names) if hub_id]

    @property
    def num_held_out(self) -> int:
        """Samples that leave the data set for the public set, 0 if that lies elsewhere."""
        return self.held_out_size if self.public_dataset == HELD_OUT else 0


@dataclass(frozen=True)
class DataPlan:
    """Everything that the data of a run depend on; equal plans share one decoded copy.

    `reads_dataset` is False on nodes with their own data that a run config describes.
    """

    settings: DataSettings
    num_clients: int
    seed: int = 0
    device: str = "cpu"
    reads_dataset: bool = True
    _partition: object = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        # Another function may get the same name in this process, as when a notebook cell is
        # changed; the plans are not equal then.
        if is_of_this_process(self.settings.partition):
            with suppress(CustomObjectError):  # reported when the samples are split
                object.__setattr__(self, "_partition", find_custom(self.settings.partition))

    def at_node(self, data_path: str) -> "DataPlan":
        """Return the plan as a node reads it; `data_path` is its own data, if it has some."""
        data = self.settings
        is_described = data.configured_shape and data.configured_classes
        is_mere_name = data_path and is_described and data.public_dataset != HELD_OUT
        return replace(self, reads_dataset=False) if is_mere_name else self
