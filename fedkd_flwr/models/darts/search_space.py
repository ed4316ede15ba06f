"""A search space: what a run config says of its supernet and of the network beside it."""

from dataclasses import dataclass, field

from fedkd_flwr.models.darts.genotype import PUBLISHED_GENOTYPE, Genotype
from fedkd_flwr.models.darts.settings import SupernetSettings


@dataclass(frozen=True)
class SearchSpace:
    """Size of a supernet, and the genotype of the fixed network beside it.

    Attributes
    ----------
    settings : SupernetSettings
        Channels, cells, nodes and operations.
    genotype : Genotype
        Cells of the fixed network.
    """

    settings: SupernetSettings = field(default_factory=SupernetSettings)
    genotype: Genotype = PUBLISHED_GENOTYPE
