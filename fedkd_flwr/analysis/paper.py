"""Add a paper's accuracies to a comparison, as two more columns of its table.

A TOML file of figures names its source and lists the columns of a table in a paper. Each column
has the settings of the runs that it applies to (``where``), further settings of the paper
(``size``), and accuracies in percent (``figures``)::

    source = "Zhang et al. 2021, Table 2"

    [[columns]]
    where = { dataset = "fashion-mnist", num-clients = 20 }
    size = { num-server-rounds = 20 }
    figures = [
        { strategy = "fedavg", accuracy = 80.69 },
        { strategy = "kt-pfl-params", accuracy = 93.93 },
    ]

A figure may have settings too, such as ``perfed-ckt.clusters = 3``; it applies to runs with these
settings. If runs differ from the paper's ``size``, a note says so, since the accuracies are then
not comparable.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.config import ConfigError, default_values, known_names
from fedkd_flwr.config.flat_config import flatten
from fedkd_flwr.config.toml_files import load_toml
from fedkd_flwr.runs import Run

ACCURACY = "accuracy"
"""Key of a figure that is not a setting: mean accuracy in percent."""


@dataclass(frozen=True)
class Figure:
    """One accuracy from a paper.

    Attributes
    ----------
    settings : dict
        Settings of the runs that it applies to.
    accuracy : float
        In percent.
    size : dict
        Further settings of the paper's runs.
    """

    settings: dict[str, Any]
    accuracy: float
    size: dict[str, Any]

    def is_of(self, config: Mapping[str, Any]) -> bool:
        """Return whether the figure applies to a run with these settings."""
        return all(config.get(name) == value for name, value in self.settings.items())


@dataclass(frozen=True)
class PaperFigures:
    """Figures of one table of a paper.

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
        """Return the figure that applies to a run, None if there is none.

        Raises
        ------
        ConfigError
            If more than one figure applies.
        """
        settings = defining_settings(run.config)
        found = [figure for figure in self.figures if figure.is_of(settings)]
        if len(found) > 1:
            raise ConfigError(
                f"{self.source} has {len(found)} numbers for {run.path.name}; give each "
                "number the settings in which they differ."
            )
        return found[0] if found else None


class _Column(BaseModel):
    """One of ``[[columns]]``."""

    model_config = ConfigDict(extra="forbid")
    figures: list[dict[str, Any]]
    where: dict[str, Any] = {}
    size: dict[str, Any] = {}


class _PaperFile(BaseModel):
    """The content of a file of figures."""

    model_config = ConfigDict(extra="forbid")
    source: str
    columns: list[_Column]


def read_figures(path: str | Path) -> PaperFigures:
    """Read a file of figures.

    Raises
    ------
    ConfigError
        If the file is not valid or names an unknown setting.
    """
    path = Path(path)
    try:
        content = _PaperFile.model_validate(load_toml(path, "paper file"))
    except ValidationError:
        raise ConfigError(
            f"The paper file {path} needs the key source and tables [[columns]], each with a list "
            "of tables figures; where and size are optional tables."
        ) from None
    return PaperFigures(content.source, [f for c in content.columns for f in _figures(path, c)])


def _figures(path: Path, column: _Column) -> list[Figure]:
    """Return the figures of one column."""
    size, known, found = flatten(column.size), set(known_names()), []
    for row in map(flatten, column.figures):
        if not isinstance(row.get(ACCURACY), int | float):
            raise ConfigError(f"The paper file {path} has a row without an accuracy: {row}.")
        settings = {**flatten(column.where), **row}
        accuracy = float(settings.pop(ACCURACY))
        if unknown := (settings.keys() | size.keys()) - known:
            raise ConfigError(
                f"The paper file {path} names {', '.join(sorted(unknown))}, which is not "
                "a setting; `fedkd list settings` shows all."
            )
        found.append(Figure(settings, accuracy, size))
    return found


def beside_paper(comparison: Comparison, paper: PaperFigures) -> Comparison:
    """Return a comparison with the paper's accuracy and the difference to it in its table.

    Parameters
    ----------
    comparison : Comparison
        Our runs.
    paper : PaperFigures
        The figures of the paper.

    Returns
    -------
    Comparison
        With columns ``paper`` and ``difference`` (our accuracy minus the paper's), as fractions,
        NaN for methods without a figure. Notes name the source and settings that differ.

    Raises
    ------
    ConfigError
        If no figure applies to any of the runs.
    """
    found = {label: paper.find(runs[0]) for label, runs in comparison.groups.items()}
    if not any(found.values()):
        raise ConfigError(f"{paper.source} has no number for any of these runs.")
    table = comparison.table.copy()
    accuracies = {label: figure.accuracy / 100 for label, figure in found.items() if figure}
    table["paper"] = table.index.map(accuracies).astype(float)
    table["difference"] = table["accuracy"] - table["paper"]
    notes = [f"The paper's accuracy is from {paper.source}.", *_size_notes(comparison, found)]
    return replace(comparison, table=table, notes=[*comparison.notes, *notes])


def _size_notes(comparison: Comparison, found: Mapping[str, Figure | None]) -> list[str]:
    """Return a note for each setting in which runs differ from the paper's size."""
    notes: dict[str, None] = {}
    for label, figure in found.items():
        config = {**default_values(), **comparison.groups[label][0].config}
        for name, value in (figure.size if figure else {}).items():
            if config.get(name) != value:
                notes[
                    f"Not at the paper's size: {name} is {config.get(name)}, in the paper {value}."
                ] = None
    return list(notes)
