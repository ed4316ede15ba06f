"""What a run config says of its models."""

from typing import Literal

from pydantic import Field, field_validator

from fedkd_flwr.models.assignment import ASSIGNMENTS
from fedkd_flwr.models.darts.genotype import PUBLISHED_GENOTYPE, Genotype
from fedkd_flwr.models.darts.search_space import SearchSpace
from fedkd_flwr.models.darts.settings import OPERATIONS, SMALLEST_CELLS, SupernetSettings
from fedkd_flwr.models.registry import ALLOWED, model_name
from strategies.core.slices import Slice, Words, one_of


class ModelSettings(Slice):
    """Which architectures there are, and who gets which.

    Attributes
    ----------
    models : tuple of str
        Architectures, separated by commas: keys of `fedkd_flwr.models.registry.MODELS`, or own
        ones as ``module:object``.
    model_assignment : str
        How clients get one of them; see `fedkd_flwr.models.assignment.assign_models`.
    supernet_channels, supernet_cells, supernet_nodes, supernet_stem_stride : int
        Size of ``darts`` and ``darts-fixed``.
    supernet_operations : tuple of str
        Candidate operations of ``darts``, separated by commas; empty for all eight.
    genotype : str
        JSON of the cells of ``darts-fixed``; empty for those that DARTS published.
    batch_norm_statistics : str
        With which means and variances a network with batch normalization is evaluated, whatever
        the method: ``fresh``, those of the client's own training images under the final
        weights, or ``kept``, the running averages of training.
    """

    models: Words = ("mlp", "lenet", "cnn-persfl", "cnn")
    model_assignment: str = "cyclic"
    supernet_channels: int = Field(default=SupernetSettings.channels, ge=1)
    supernet_cells: int = Field(default=SupernetSettings.cells, ge=SMALLEST_CELLS)
    supernet_nodes: int = Field(default=SupernetSettings.nodes, ge=1)
    supernet_stem_stride: int = Field(default=SupernetSettings.stem_stride, ge=1)
    supernet_operations: Words = ()
    genotype: str = ""
    batch_norm_statistics: Literal["fresh", "kept"] = "fresh"

    @field_validator("models")
    @classmethod
    def _known_models(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError(f"names no model; allowed are {', '.join(ALLOWED)}")
        return tuple(model_name(name) for name in value)

    @field_validator("model_assignment")
    @classmethod
    def _known_assignment(cls, value: str) -> str:
        return one_of(value, ASSIGNMENTS)

    @property
    def search_space(self) -> SearchSpace:
        """Size of the models ``darts`` and ``darts-fixed``.

        Raises
        ------
        ValueError
            If there is no such supernet or genotype.
        """
        settings = SupernetSettings(
            channels=self.supernet_channels,
            cells=self.supernet_cells,
            nodes=self.supernet_nodes,
            operations=self.supernet_operations or OPERATIONS,
            stem_stride=self.supernet_stem_stride,
        )
        genotype = Genotype.from_text(self.genotype) if self.genotype else PUBLISHED_GENOTYPE
        return SearchSpace(settings, genotype)
