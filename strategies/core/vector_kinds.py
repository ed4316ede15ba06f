"""Kinds of the vectors that a model is sent as: the same names on the server and on the clients."""

from strategies.core.declarations import Sent, of_model

WEIGHTS = "weights"
"""Network weights."""

BUFFERS = "buffers"
"""Running statistics of batch normalization, which are averaged but not trained."""

ALPHAS = "alphas"
"""Architecture weights of a search."""

MODEL_SENT = (of_model(WEIGHTS), Sent(BUFFERS))
"""What clients send of a model. Its statistics are those of training images themselves."""

SUPERNET_SENT = (*MODEL_SENT, of_model(ALPHAS))
"""What clients send of a supernet."""
