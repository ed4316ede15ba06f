"""The base class of clients that exchange soft predictions."""

import numpy as np
import torch
from torch import Tensor

from fedkd_flwr.clients.base import Arrays, PersonalClient, TrainReply
from fedkd_flwr.clients.privacy_ledger import NOISE
from strategies.core.masks import unpacked_mask
from strategies.core.privacy import Draws, clip_towards_uniform, noise_draws, noised_predictions
from strategies.core.randomness import random_generator
from strategies.soft_predictions import ASKED, PREDICTIONS, SoftPredictionSettings


class SoftPredictionClient(PersonalClient):
    """A client that learns from soft predictions and replies with its own."""

    settings: SoftPredictionSettings

    def public_generator(self, server_round: int) -> np.random.Generator:
        """Return the generator of a round's public batches, which is the same for all clients."""
        return random_generator(self.session.run.plan.seed, "public-batches", server_round)

    def teachers(self, name: str, received: Arrays) -> Tensor | None:
        """Return the teacher predictions of a message, (..., P, K); None if there are none yet."""
        if name not in received:
            return None
        return torch.from_numpy(self.settings.wire.received(name, received)).to(self.device)

    def soft_predictions(self, images: Tensor, temperature: float) -> Tensor:
        """Return `model`'s soft predictions ``softmax(z / T)`` on images, shape (P, K)."""
        return torch.softmax(self.predict(self.model, images) / temperature, dim=1)

    def answers(self, received: Arrays, images: Tensor, temperature: float) -> Tensor:
        """Predict (A, K) on the public samples (P, …) that the message asks for, if any."""
        if ASKED in received:
            images = images[self._mask(ASKED, received)]
        if not len(images):
            return torch.empty((0, self.data.classes), device=self.device)
        return self.soft_predictions(images, temperature)

    def _mask(self, name: str, received: Arrays) -> Tensor:
        return self.tensor(unpacked_mask(received[name], self.session.run.plan.public_size))

    def release(
        self, predictions: Tensor, metrics: dict[str, float], server_round: int
    ) -> TrainReply:
        """Reply with predictions (A, K), clipped and with noise if the settings ask for it."""
        settings, wire = self.settings, self.settings.wire
        if not len(predictions):
            return TrainReply(metrics=metrics)
        released = predictions.cpu().numpy()
        if settings.noise_multiplier:
            self.note_release(server_round)
            draw = self._draws(server_round).normal
            released = noised_predictions(
                released, settings.clip_norm, settings.noise_multiplier, draw
            )
        elif settings.clip_norm:
            released = clip_towards_uniform(released, settings.clip_norm)
        return TrainReply(wire.encode(PREDICTIONS, released), metrics)

    @property
    def release_entry(self) -> dict[str, float]:
        """What a release adds to the node's ledger; nothing without noise."""
        noise = self.settings.noise_multiplier
        return {NOISE: noise} if noise else {}

    def note_release(self, server_round: int) -> None:
        """Write a release to the node's ledger; see `PrivacyLedger.record`."""
        if ledger := self.session.node.ledger:
            ledger.record(self.release_entry, self.session.request.run_id, server_round)

    def _draws(self, server_round: int) -> Draws:
        """Return what draws the noise. It is secret unless the settings have a seed."""
        seed = self.settings.noise_seed
        return noise_draws(seed, "prediction-noise", server_round, self.partition_id)
