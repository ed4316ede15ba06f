"""A paper's figures beside ours: two more columns in a comparison's table.

A file of figures names its source and lists the columns of a table in a paper. Each says by
settings which runs it is for, which settings the paper had besides, and its figures in percent::

    source = "Zhang et al. 2021, Table 2"

    [[columns]]
    where = { dataset = "fashion-mnist", num-clients = 20 }
    size = { num-server-rounds = 20 }
    figures = [
        { strategy = "fedavg", accuracy = 80.69 },
        { strategy = "kt-pfl-params", accuracy = 93.93 },
    ]

A figure's settings, such as ``perfed-ckt.clusters = 3``, are those of the runs it stands beside.
Where runs are not of the paper's ``size``, a note says so: the difference then has another cause.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.config import ConfigError, known_names
from fedkd_flwr.config_files import load_toml
from fedkd_flwr.flat import flatten
from fedkd_flwr.runs import Run

ACCURACY = "accuracy"
"""Key of a figure that is no setting: mean accuracy in percent."""


@dataclass(frozen=True)
class Figure:
    """One accuracy of a paper.

    Attributes
    ----------
    settings : dict
        Settings of the runs it is for.
    accuracy : float
        In percent.
    size : dict
        What the paper's runs had besides.
    """

    settings: dict[str, Any]
    accuracy: float
    size: dict[str, Any]

    def is_of(self, config: Mapping[str, Any]) -> bool:
        """Return whether a run with these settings is what the figure is for."""
        return all(config.get(name) == value for name, value in self.settings.items())


@dataclass(frozen=True)
class PaperFigures:
    """Figures of one table in a paper.

    Attributes
    ----------
    source : str
        Paper and table.
    figures : list of Figure
        In the order of the file.
    """

    source: str
    figures: list[Figure]

    def find(self, run: Run) -> Figure | None:
        """Return the figure for a run, None if the table has none.

        Raises
        ------
        ConfigError
            If two are for it.
        """
        settings = defining_settings(run.config)
        found = [figure for figure in self.figures if figure.is_of(settings)]
        if len(found) > 1:
            raise ConfigError(
                f"{self.source} has {len(found)} figures for {run.path.name}: their settings "
                "have to tell them apart."
            )
        return found[0] if found else None


def read_figures(path: str | Path) -> PaperFigures:
    """Read a file of figures.

    Raises
    ------
    ConfigError
        If it is none, or names a setting that does not exist.
    """
    path = Path(path)
    content = load_toml(path, "file of figures")
    columns = content.get("columns", [])
    is_listed = isinstance(columns, list) and all(isinstance(column, dict) for column in columns)
    if content.keys() != {"source", "columns"} or not is_listed:
        raise ConfigError(f"The file of figures {path} needs source and tables [[columns]].")
    figures = [figure for column in columns for figure in _figures(path, column)]
    return PaperFigures(str(content["source"]), figures)


def _figures(path: Path, column: Mapping[str, Any]) -> list[Figure]:
    """Return the figures of one column."""
    rows, where, size = (column.get(key, {}) for key in ("figures", "where", "size"))
    are_tables = isinstance(rows, list) and all(isinstance(t, dict) for t in (*rows, where, size))
    if not are_tables:
        raise ConfigError(
            f"The file of figures {path} needs, in each of [[columns]], a list of tables for "
            "figures, and a table for where and for size if they are there."
        )
    where, size = flatten(where), flatten(size)
    found = []
    for row in map(flatten, rows):
        if not isinstance(row.get(ACCURACY), int | float):
            raise ConfigError(f"The file of figures {path} has a row without an accuracy: {row}.")
        settings = {**where, **row}
        accuracy = float(settings.pop(ACCURACY))
        unknown = (settings.keys() | size.keys()) - set(known_names())
        if unknown:
            raise ConfigError(
                f"The file of figures {path} names {', '.join(sorted(unknown))}, which is no "
                "setting; `fedkd list` shows them."
            )
        found.append(Figure(settings, accuracy, size))
    return found


def beside_paper(comparison: Comparison, paper: PaperFigures) -> Comparison:
    """Return a comparison whose table has the paper's accuracy and ours minus it.

    Parameters
    ----------
    comparison : Comparison
        Our runs.
    paper : PaperFigures
        What a paper reports.

    Returns
    -------
    Comparison
        With columns ``paper`` and ``difference``, parts of 1 as ``accuracy`` is, NaN for methods
        that the paper does not have; and with notes on the source and on sizes that differ.

    Raises
    ------
    ConfigError
        If the paper has no figure for any of the runs.
    """
    found = {label: paper.find(runs[0]) for label, runs in comparison.groups.items()}
    if not any(found.values()):
        raise ConfigError(f"{paper.source} has no figure for any of these runs.")
    table = comparison.table.copy()
    accuracies = {label: figure.accuracy / 100 for label, figure in found.items() if figure}
    table["paper"] = table.index.map(accuracies).astype(float)
    table["difference"] = table["accuracy"] - table["paper"]
    notes = [f"The paper's accuracy is from {paper.source}.", *_size_notes(comparison, found)]
    return replace(comparison, table=table, notes=[*comparison.notes, *notes])


def _size_notes(comparison: Comparison, found: Mapping[str, Figure | None]) -> list[str]:
    """Name the settings in which runs are not of the paper's size, each once."""
    notes: dict[str, None] = {}
    for label, figure in found.items():
        config = comparison.groups[label][0].config
        for name, value in (figure.size if figure else {}).items():
            if config.get(name) != value:
                notes[f"Not at the paper's size: {name} is {config.get(name)}, there {value}."] = (
                    None
                )
    return list(notes)
