"""The baseline that exchanges nothing: every client trains by itself.

What a personalized method has to beat to be worth its messages.
"""

from strategies.base import PersonalizedStrategy


class Local(PersonalizedStrategy):
    """Clients train on their own data and are evaluated; no array crosses the network."""
