"""Local training, the baseline without communication.

A personalized method has to beat it to be worth its communication.
"""

from strategies.base import PersonalizedStrategy


class Local(PersonalizedStrategy):
    """Clients train on their own data and are evaluated; no array crosses the network."""

    record = PersonalizedStrategy.record.derived(
        paper=None, exchanged="nothing", dp_sgd=True, takes_estimators=True
    )
