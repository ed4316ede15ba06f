"""Which layers of a model are sent: the same choice on the server and on the clients."""

from typing import Literal

LayerChoice = slice | Literal["without-batch-norm"]
"""Layers by their position, or all but those of batch normalization."""

WITHOUT_BATCH_NORM: Literal["without-batch-norm"] = "without-batch-norm"
"""All layers but those of batch normalization."""
