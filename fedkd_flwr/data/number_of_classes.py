"""How many classes a custom data set has, where the run config does not say so."""

import functools

from fedkd_flwr.data.changed_folders import reads_data
from fedkd_flwr.data.registry import MOST_CLASSES, DataError, DataFormat
from fedkd_flwr.data.sources import load_labels


@reads_data
@functools.cache
def count_classes(name: str, data_root: str, data_format: DataFormat) -> int:
    """Return the largest class of a data set plus one; see `load_labels`.

    Raises
    ------
    DataError
        As `load_labels` does, or if there is one class, or more than `MOST_CLASSES`.
    """
    classes = int(load_labels(name, data_root, data_format).max()) + 1
    if classes < 2:
        raise DataError(f"{name} has labels of one class; a model needs at least two")
    if classes > MOST_CLASSES:
        raise DataError(
            f"{name} has labels up to {classes - 1}, and at most {MOST_CLASSES} classes are "
            "allowed: number the classes 0, 1, 2, …"
        )
    return classes
