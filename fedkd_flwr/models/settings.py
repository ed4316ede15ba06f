"""Settings of a run's models."""

import tomllib
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fedkd_flwr.models.genotype import SMALL, STANDARD, SupernetSettings
from fedkd_flwr.models.registry import ALLOWED, DARTS, model_name
from strategies.core.settings_groups import (
    ANY_ON_NODES,
    DEFAULT_ON_NODES,
    OnNodes,
    SettingsGroup,
    Words,
)

DIGITS = "digits"  # the bundled data set, on which `SMALL` supernets are the default
SIZES = ("channels", "cells", "nodes", "stem_stride")  # of a supernet, settings ``supernet_*``


class EstimatorSettings(SettingsGroup):
    """Models that are no networks: their options, and the weights of a distillation's rows."""

    options: Annotated[str, DEFAULT_ON_NODES] = ""
    """Options of estimators as TOML, one table for each by the name after the colon:
    ``RandomForestClassifier = {n_estimators = 200}``."""
    private_weight: Annotated[float, DEFAULT_ON_NODES] = Field(default=1.0, gt=0)
    """Weight of a private sample in the fit of an estimator."""
    public_weight: Annotated[float, DEFAULT_ON_NODES] = Field(default=1.0, ge=0)
    """Weight of a public sample with the soft label of its teacher."""
    top_classes: Annotated[int, DEFAULT_ON_NODES] = Field(default=0, ge=0)
    """Classes of a soft label that are used, the most probable ones; 0 for all. Every one is a row
    of the fit."""

    @classmethod
    def key_of(cls, name: str) -> str:
        """Return the flat key of a field."""
        return f"estimator-{super().key_of(name)}"

    @field_validator("options")
    @classmethod
    def _tables(cls, value: str) -> str:
        try:
            tables = _read_tables(value)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"it is not TOML ({error}); {EXAMPLE}") from None
        if not all(isinstance(table, dict) for table in tables.values()):
            raise ValueError(f"it should have a table for each estimator; {EXAMPLE}")
        return value

    def options_of(self, name: str) -> dict[str, Any]:
        """Return the options of an estimator ``module:object``."""
        options: dict[str, Any] = _read_tables(self.options).get(_last_name(name), {})
        return options


EXAMPLE = 'write it like RandomForestClassifier = {n_estimators = 200, criterion = "entropy"}'
"""How options of estimators are written."""


def _read_tables(text: str) -> dict[str, Any]:
    tables: dict[str, Any] = tomllib.loads(f"tables = {{ {text} }}")["tables"]
    return tables


def _last_name(name: str) -> str:
    """Return ``Forest`` of ``module:Forest``."""
    return name.rpartition(":")[2].rpartition(".")[2]


class ModelSettings(SettingsGroup):
    """Which architectures there are, and who gets which."""

    models: Annotated[Words, ANY_ON_NODES] = ("mlp", "lenet", "cnn-persfl", "cnn")
    """Architectures, separated by commas: keys of `fedkd_flwr.models.registry.MODELS`, or own ones
    as ``module:object``, networks or estimators."""
    model_assignment: Annotated[Literal["cyclic", "blocks", "by-size"], ANY_ON_NODES] = "cyclic"
    """How clients get one of them: ``cyclic``, in turn by partition-id; ``blocks``, the first
    clients get the first one; or ``by-size``, at random, the first one, which has to be the
    largest, more likely for clients with more data."""
    supernet_channels: Annotated[int, OnNodes(0, 64)] = Field(default=0, ge=0)
    """Channels in the first cell of ``darts`` and ``darts-fixed``; 0 for 16, or 8 for ``darts`` on
    ``digits``."""
    supernet_cells: Annotated[int, OnNodes(0, 20)] = Field(default=0, ge=0)
    """Cells of ``darts`` and ``darts-fixed``, at least 3; 0 for 8, or 3 for ``darts`` on
    ``digits``."""
    supernet_nodes: Annotated[int, OnNodes(0, 4)] = Field(default=0, ge=0)
    """Inner nodes per cell of ``darts``; 0 for 4, or 2 on ``digits``."""
    supernet_stem_stride: Annotated[int, OnNodes(0, 2)] = Field(default=0, ge=0)
    """Stride before the first cell of ``darts`` and ``darts-fixed``; 2 halves the resolution. 0 for
    1, or 2 for ``darts`` on ``digits``."""
    supernet_operations: Annotated[Words, ANY_ON_NODES] = ()
    """Candidate operations of ``darts``, separated by commas; empty for all eight, or on ``digits``
    for ``none,max_pool_3x3,skip_connect,sep_conv_3x3``."""
    feature_width: Annotated[int, OnNodes(0, 4096)] = Field(default=0, ge=0)
    """Features that enter the head of every model, whatever the method. A model with another number
    gets a linear layer before its head. 0 for the models' own numbers."""
    initial_weights: Annotated[Literal["common", "own"], ANY_ON_NODES] = "common"
    """``common``, one draw for all clients of an architecture, or ``own``, one for each client."""
    batch_norm_statistics: Annotated[Literal["fresh", "kept"], ANY_ON_NODES] = "fresh"
    """With which means and variances a network with batch normalization is evaluated, whatever the
    method: ``fresh``, those of the client's own training images under the final weights, or
    ``kept``, the running averages of training."""
    estimators: EstimatorSettings = EstimatorSettings()
    """Settings of models that are no networks."""

    @field_validator("models")
    @classmethod
    def _known_models(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError(f"names no model; allowed are {', '.join(ALLOWED)}")
        return tuple(model_name(name) for name in value)

    def check(self) -> None:
        """Refuse options of estimators that no client has."""
        names = {_last_name(name) for name in self.models}
        if others := sorted(_read_tables(self.estimators.options).keys() - names):
            raise ValueError(
                f"estimator-options has a table for {others[0]}, which models lacks; allowed are "
                f"{', '.join(sorted(names))}"
            )

    def resolved(self, dataset: str) -> "ModelSettings":
        """Return the settings with the supernet's size filled in: `SMALL` on ``digits``."""
        is_small = dataset == DIGITS and DARTS in self.models
        sizes = self._supernet(SMALL if is_small else STANDARD, *SIZES)
        if is_small and not self.supernet_operations:
            sizes["operations"] = SMALL.operations
        return self.model_copy(update={f"supernet_{name}": size for name, size in sizes.items()})

    @property
    def search_space(self) -> SupernetSettings:
        """The supernet of ``darts``, and size of ``darts-fixed``; `STANDARD` where it is open."""
        return SupernetSettings(**self._supernet(STANDARD, *SIZES, "operations"))

    def _supernet(self, default: SupernetSettings, *names: str) -> dict[str, Any]:
        """Return some fields of a supernet: those of `default` where the settings are open."""
        return {name: getattr(self, f"supernet_{name}") or getattr(default, name) for name in names}
