"""A search space: what a run config says of its supernet, and the networks that follow."""

from dataclasses import dataclass, field

from torch import nn

from fedkd_flwr.models.common import Shape
from fedkd_flwr.models.darts.fixed import FixedNetwork
from fedkd_flwr.models.darts.genotype import Choice, Genotype
from fedkd_flwr.models.darts.supernet import SupernetSettings, build_supernet

PUBLISHED_GENOTYPE = Genotype(
    normal=(
        (Choice("sep_conv_3x3", 0), Choice("sep_conv_3x3", 1)),
        (Choice("sep_conv_3x3", 0), Choice("sep_conv_3x3", 1)),
        (Choice("skip_connect", 0), Choice("sep_conv_3x3", 1)),
        (Choice("skip_connect", 0), Choice("dil_conv_3x3", 2)),
    ),
    reduce=(
        (Choice("max_pool_3x3", 0), Choice("max_pool_3x3", 1)),
        (Choice("max_pool_3x3", 1), Choice("skip_connect", 2)),
        (Choice("max_pool_3x3", 0), Choice("skip_connect", 2)),
        (Choice("max_pool_3x3", 1), Choice("skip_connect", 2)),
    ),
)
"""The cells that DARTS found on CIFAR-10 with second-order search (its figures 4 and 5)."""


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

    def supernet(self, shape: Shape, classes: int) -> nn.Module:
        """Build the supernet for images of a shape."""
        return build_supernet(self.settings, shape, classes)

    def fixed_network(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network of the genotype with the supernet's channels and cells."""
        settings = self.settings
        return FixedNetwork(
            self.genotype,
            shape,
            classes,
            settings.channels,
            settings.cells,
            settings.stem_multiplier,
            settings.stem_stride,
        )
