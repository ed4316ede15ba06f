"""FedPer: clients share the body of a model, and each keeps a head of its own.

Manoj Ghuhana Arivazhagan, Vinay Aggarwal, Aaditya Kumar Singh, Sunav Choudhary, *Federated
Learning with Personalization Layers*, 2019, arXiv:1912.00818.

A client trains body and head together and sends the body, of which the server takes the mean
weighted by training samples. The last K_P layers, the head, never leave the client.

Differences from the paper
--------------------------
- K_P counts all layers with numbers of their own, batch normalization among them, from the
  output; 1 is the last linear layer. In its ResNet the paper counts whole blocks.
- Heads start from each client's own draw. A client that was never sampled is evaluated with a
  head that has not been trained.
- Clients may be sampled; in the paper all take part in each round.
"""

from pydantic import Field

from strategies.core.plan import Settings
from strategies.parameters import ParameterStrategy


class FedPerSettings(Settings):
    """Settings of FedPer.

    Attributes
    ----------
    personal_layers : int
        K_P, the number of layers that stay on the client, counted from the output. If it covers
        the whole model, nothing is shared and the method is `local`.
    """

    table = "fedper"
    personal_layers: int = Field(default=1, ge=1)


class FedPer(ParameterStrategy):
    """FedAvg of the body."""

    settings_type = FedPerSettings

    @classmethod
    def shared_layers(cls, settings: Settings) -> slice:
        """Return all layers but the last K_P."""
        assert isinstance(settings, FedPerSettings)
        return slice(None, -settings.personal_layers)
