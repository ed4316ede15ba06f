"""What clients share that exchange soft predictions: receive teachers, release predictions."""

import numpy as np
from torch import Tensor

from fedkd_flwr.clients.base import Arrays, PersonalClient, TrainReply
from strategies.core.privacy import clip_towards_uniform, noised_predictions
from strategies.core.randomness import random_generator
from strategies.soft_predictions import PREDICTIONS, SoftPredictionSettings


class SoftPredictionClient(PersonalClient):
    """A client that learns from soft predictions and replies with its own."""

    settings: SoftPredictionSettings

    def received_predictions(self, name: str, received: Arrays) -> Tensor:
        """Decode the probabilities of a message.

        Returns
        -------
        Tensor
            Shape (..., P, K) float32, on the device.
        """
        return self.tensor(self.settings.wire.probabilities(name, received))

    def release(
        self, predictions: Tensor, metrics: dict[str, float], server_round: int
    ) -> TrainReply:
        """Reply with predictions, clipped and noised where the settings ask for it.

        With noise no further number goes along: losses and clusters are private too.

        Parameters
        ----------
        predictions : Tensor
            Shape (P, K), rows on the simplex.
        metrics : dict of str to float
            Numbers for the server where there is no noise.
        server_round : int
            Repeatable noise depends on it.
        """
        settings, wire = self.settings, self.settings.wire
        released = predictions.cpu().numpy()
        if settings.noise_multiplier:
            released = noised_predictions(
                released, settings.clip_norm, settings.noise_multiplier, self._noise(server_round)
            )
            return TrainReply(wire.encode(PREDICTIONS, released))
        if settings.clip_norm:
            released = clip_towards_uniform(released, settings.clip_norm)
        return TrainReply(wire.encode(PREDICTIONS, released), metrics)

    def _noise(self, server_round: int) -> np.random.Generator:
        """Return the generator of the noise: secret, unless the settings give a seed."""
        if self.settings.noise_seed < 0:
            return np.random.default_rng()
        return random_generator(
            self.settings.noise_seed, "prediction-noise", server_round, self.partition_id
        )
