"""Kinds of the vectors that a model is sent as: the same names on the server and on the clients."""

WEIGHTS = "weights"
"""Network weights."""

BUFFERS = "buffers"
"""Running statistics of batch normalization, which are averaged but not trained."""

ALPHAS = "alphas"
"""Architecture weights of a search."""
