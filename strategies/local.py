"""Local training, the baseline without communication.

A personalized method has to beat it to be worth its communication.
"""

from strategies.base import PersonalizedStrategy


class Local(PersonalizedStrategy):
    """Clients train on their own data and are evaluated; no array crosses the network."""

    paper = "baseline"
    exchanged = "nothing"
    dp_sgd = True
    takes_estimators = True
    color_family = "local"
