"""The size of a supernet, and discrete architectures; no network is built."""

import json
from dataclasses import dataclass
from typing import NamedTuple

NONE = "none"  # the operation with output zero: a missing edge
POOLING = ("max_pool_3x3", "avg_pool_3x3")  # the operations without batch normalization

OPERATIONS = (
    NONE,
    *POOLING,
    "skip_connect",
    "sep_conv_3x3",
    "sep_conv_5x5",
    "dil_conv_3x3",
    "dil_conv_5x5",
)
"""Names of the eight operations, in the paper's order of columns of alpha."""

CELL_INPUTS = 2
"""Number of inputs of a cell, the outputs of the two cells before it. Its nodes follow them."""

SMALLEST_CELLS = 3
"""Smallest number of cells of a network. With fewer there would be no normal cell."""


@dataclass(frozen=True)
class SupernetSettings:
    """Size and search space of a supernet. The defaults are the paper's for CIFAR-10.

    Raises
    ------
    ValueError
        If a number is too small, or operations are unknown, repeated, or nothing but "none".
    """

    channels: int = 16
    """Channels of a node in the first cell."""
    cells: int = 8
    """Number of cells, at least 3; those at 1/3 and 2/3 of the depth are reduction cells."""
    nodes: int = 4
    """Inner nodes of a cell. Node i reads the two inputs and all nodes before it. A cell has ``2 +
    3 + ... + (nodes + 1)`` edges: 14 with 4 nodes."""
    operations: tuple[str, ...] = OPERATIONS
    """Candidates on each edge: distinct names of `OPERATIONS`, at least one other than "none"."""
    stem_multiplier: int = 3
    """The stem has this many times `channels` channels."""
    stem_stride: int = 1
    """2 halves the resolution before the first cell, which makes training two to four times as
    fast; the paper's is 1 for CIFAR-10, and its ImageNet stem reduces too."""

    def __post_init__(self) -> None:
        for name, smallest, largest in (
            ("channels", 1, 2**16),
            ("cells", SMALLEST_CELLS, 100),
            ("nodes", 1, 20),
            ("stem_multiplier", 1, 100),
            ("stem_stride", 1, 100),
        ):
            if not smallest <= (value := getattr(self, name)) <= largest:
                raise ValueError(
                    f"a supernet's {name} must be from {smallest} to {largest}, got {value}"
                )
        for name in self.operations:
            if name not in OPERATIONS:
                raise ValueError(f"unknown operation {name!r}; choose from {', '.join(OPERATIONS)}")
        if len(set(self.operations)) < len(self.operations):
            raise ValueError(f"operations must be distinct, got {', '.join(self.operations)}")
        if not set(self.operations) - {NONE}:
            raise ValueError(f"a supernet needs at least one operation besides {NONE!r}")

    @property
    def edges(self) -> int:
        """Number of edges of a cell."""
        return sum(CELL_INPUTS + node for node in range(self.nodes))


STANDARD = SupernetSettings()  # the paper's supernet for CIFAR-10

SMALL = SupernetSettings(
    channels=8,
    cells=SMALLEST_CELLS,
    nodes=2,
    operations=(NONE, "max_pool_3x3", "skip_connect", "sep_conv_3x3"),
    stem_stride=2,
)
"""A supernet for the bundled digits: a round takes seconds instead of minutes."""


class Choice(NamedTuple):
    """One kept edge of a cell: its operation, which is not "none", and the state it starts from.

    The states 0 and 1 are the outputs of the cell before last and of the last cell.
    """

    operation: str
    source: int


Node = tuple[Choice, ...]
"""The edges into one inner node. The node is the sum of their outputs."""


@dataclass(frozen=True)
class Genotype:
    """Architecture of a network: the edges of its normal and its reduction cells."""

    normal: tuple[Node, ...]
    reduce: tuple[Node, ...]

    @property
    def nodes(self) -> int:
        """Number of inner nodes of a cell."""
        return len(self.normal)

    def to_text(self) -> str:
        """Return the genotype as one line of JSON."""
        return json.dumps({"normal": self.normal, "reduce": self.reduce})


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
