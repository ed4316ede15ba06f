"""The search space of a run: the size of its supernet and of its fixed network."""

from dataclasses import dataclass, field

from fedkd_flwr.models.darts.genotype import PUBLISHED_GENOTYPE, Genotype
from fedkd_flwr.models.darts.settings import SupernetSettings


@dataclass(frozen=True)
class SearchSpace:
    """Size of a supernet, and the genotype of a fixed network of the same size.

    Attributes
    ----------
    settings : SupernetSettings
        Channels, cells, nodes and operations.
    genotype : Genotype
        Cells of the fixed network.
    """

    settings: SupernetSettings = field(default_factory=SupernetSettings)
    genotype: Genotype = PUBLISHED_GENOTYPE
