"""Size and candidate operations of a search, without building a network."""

from dataclasses import dataclass

NONE = "none"
"""The operation with output zero: a missing edge."""

POOLING = ("max_pool_3x3", "avg_pool_3x3")
"""The operations without batch normalization."""

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

    Attributes
    ----------
    channels : int
        Channels of a node in the first cell.
    cells : int
        Number of cells, at least 3; those at 1/3 and 2/3 of the depth are reduction cells.
    nodes : int
        Inner nodes of a cell. Node i reads the two inputs and all nodes before it. A cell has
        ``2 + 3 + ... + (nodes + 1)`` edges: 14 with 4 nodes.
    operations : tuple of str
        Candidates on each edge: distinct names of `OPERATIONS`, at least one other than "none".
    stem_multiplier : int
        The stem has this many times `channels` channels.
    stem_stride : int
        2 halves the resolution before the first cell, which makes training two to four
        times as fast; the paper's is 1 for CIFAR-10, and its ImageNet stem reduces too.

    Raises
    ------
    ValueError
        If a number is too small, or operations are unknown, repeated, or nothing but "none".
    """

    channels: int = 16
    cells: int = 8
    nodes: int = 4
    operations: tuple[str, ...] = OPERATIONS
    stem_multiplier: int = 3
    stem_stride: int = 1

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


STANDARD = SupernetSettings()
"""The paper's supernet for CIFAR-10."""

SMALL = SupernetSettings(
    channels=8,
    cells=SMALLEST_CELLS,
    nodes=2,
    operations=(NONE, "max_pool_3x3", "skip_connect", "sep_conv_3x3"),
    stem_stride=2,
)
"""A supernet for the bundled digits: a round takes seconds instead of minutes."""
