"""Sweeps of Python values, without a file written by hand."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedkd_flwr.custom_objects.naming import name_objects
from fedkd_flwr.files import make_folder, write_text
from fedkd_flwr.runs import Run, absolute
from fedkd_flwr.sweeps.grid import COMBINATIONS
from fedkd_flwr.sweeps.running import run_sweep
from strategies.core.settings_groups import kebab_case

SWEEP = "sweep.toml"
"""The file beside the runs, which `run_sweep` and ``fedkd sweep`` read too."""


def sweep(
    base: Mapping[str, Any],
    grid: Mapping[str, Iterable[Any]],
    output_dir: str | Path | None = None,
    **options: Any,
) -> list[Run]:
    """Do a run for each combination of some values.

    A second call does what is left, also with more methods and seeds. The folder of the runs gets
    the sweep as ``sweep.toml``.

    Parameters
    ----------
    base : mapping
        Settings of every run, as `fedkd_flwr.run` takes them; ``preset`` may name one.
    grid : mapping
        The values of each setting that varies. Settings that only go together are mappings in a
        list ``combinations``.
    output_dir : str or Path, optional
        Folder of the runs; by default one in ``./runs`` that is named after `base`.
    **options
        Further arguments of `run_sweep`, such as ``jobs=2``.

    Returns
    -------
    list of Run
        The finished runs, in the order of the grid.

    Raises
    ------
    ConfigError, DataError, RunDirectoryError
        Before any run starts.

    Examples
    --------
    >>> runs = fedkd_flwr.sweep(
    ...     base={"models": "mlp", "num_clients": 3, "num_server_rounds": 1},
    ...     grid={"strategy": ["local", "kt-pfl"], "seed": range(2)},
    ... )
    >>> [(run.config["strategy"], run.config["seed"]) for run in runs]
    [('local', 0), ('local', 1), ('kt-pfl', 0), ('kt-pfl', 1)]
    """
    shared = _named(base)
    axes = {kebab_case(name): _values(name, values) for name, values in grid.items()}
    digest = hashlib.sha256(json.dumps(shared, sort_keys=True, default=str).encode()).hexdigest()
    folder = absolute(output_dir or Path("runs") / f"sweep-{digest[:8]}")
    make_folder(folder)
    write_text(folder / SWEEP, tomli_w.dumps({"base": shared, "grid": axes}))
    return run_sweep(folder / SWEEP, folder, **options)


def _values(name: str, values: Iterable[Any]) -> list[Any]:
    if name == COMBINATIONS:
        return [_named(value) for value in values]
    plain = (value.item() if isinstance(value, np.generic) else value for value in values)
    return [_named({name: value})[kebab_case(name)] for value in plain]


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return run config values as `fedkd_flwr.run` reads them, with paths as text."""
    named = name_objects({kebab_case(name): value for name, value in settings.items()})
    return {key: str(v) if isinstance(v, Path) else v for key, v in named.items()}
