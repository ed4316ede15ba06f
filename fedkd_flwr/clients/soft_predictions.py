"""The base class of clients that exchange soft predictions."""

import math

import numpy as np
import torch
from torch import Tensor

from fedkd_flwr.clients.base import Arrays, PersonalClient, TrainReply
from fedkd_flwr.clients.privacy_ledger import NOISE
from fedkd_flwr.clients.steps import yields_jobs
from fedkd_flwr.data.public import public_subset
from fedkd_flwr.training.jobs import PredictJob, Steps
from strategies.core.caching import ASKED, TAUGHT, unpacked_mask
from strategies.core.privacy import (
    NormalDraws,
    clip_towards_uniform,
    noised_predictions,
    secret_normal,
)
from strategies.core.randomness import random_generator
from strategies.soft_predictions import PREDICTIONS, SoftPredictionSettings

TEACHERS = "teachers"
"""Name of a client's stored teacher predictions on the public pool, with `cache_rounds`."""


class LostTeachersError(RuntimeError):
    """A client has lost teacher predictions of earlier rounds. The server sends all again."""


def with_new_rows(stored: Tensor | None, rows: Tensor, samples: Tensor, pool: int) -> Tensor:
    """Return a client's stored teacher predictions, updated with new ones.

    Parameters
    ----------
    stored : Tensor or None
        Shape (..., pool, K), NaN where there was no prediction yet; None before the first. If
        the number of centroids has changed, everything stored is outdated.
    rows : Tensor
        Shape (..., n, K), the new predictions.
    samples : Tensor
        Shape (n,), the samples of the pool to which the rows belong.
    pool : int
        Number of samples in the public pool.
    """
    shape = (*rows.shape[:-2], pool, rows.shape[-1])
    if stored is None or stored.shape != shape:
        stored = torch.full(shape, math.nan)
    stored = stored.to(rows.device, copy=True)
    stored[..., samples, :] = rows
    return stored


class SoftPredictionClient(PersonalClient):
    """A client that learns from soft predictions and replies with its own."""

    settings: SoftPredictionSettings

    def public_generator(self, server_round: int) -> np.random.Generator:
        """Return the generator of a round's public batches, which is the same for all clients."""
        return random_generator(self.run.plan.seed, "public-batches", server_round)

    def teachers(self, name: str, received: Arrays, drawn_in: int) -> Tensor | None:
        """Return the teacher predictions of a message, completed with those stored before.

        Parameters
        ----------
        name : str
            Name of the array with the teacher predictions.
        received : dict of str to ndarray
            Arrays of the message.
        drawn_in : int
            The round that drew the public samples of these predictions.

        Returns
        -------
        Tensor or None
            Shape (..., P, K) float32, on the device; None if there are no predictions yet.

        Raises
        ------
        LostTeachersError
            If a prediction that the client should have stored is missing.
        """
        if name not in received and TAUGHT not in received:
            return None
        if not self.settings.cache_rounds:
            return self.received_predictions(name, received)
        pool, plan = len(self.data.public_images), self.run.plan
        drawn_in = self.request.drawn_in(drawn_in)
        subset = self.tensor(public_subset(pool, plan.public_size, plan.seed, drawn_in))
        stored = (self.memory.load(TEACHERS) or {}).get(name)
        if name in received:
            rows = self.received_predictions(name, received)
            stored = with_new_rows(stored, rows, subset[self._mask(TAUGHT, received)], pool)
            self.memory.save(TEACHERS, {name: stored})
        if stored is None or (teachers := stored.to(self.device)[..., subset, :]).isnan().any():
            raise LostTeachersError("it has lost teacher predictions of earlier rounds")
        return teachers

    @yields_jobs
    def predict(self, images: Tensor, temperature: float) -> Steps[Tensor]:
        """Return `model`'s soft predictions ``softmax(z / T)`` on images, shape (P, K)."""
        logits: Tensor = yield PredictJob(self.model, images)
        return torch.softmax(logits / temperature, dim=1)

    @yields_jobs
    def answers(self, received: Arrays, images: Tensor, temperature: float) -> Steps[Tensor]:
        """Predict on the public samples that the message asks for.

        Parameters
        ----------
        received : dict of str to ndarray
            Arrays of the message.
        images : Tensor
            Shape (P, channels, height, width).
        temperature : float
            T of the soft predictions.

        Returns
        -------
        Tensor
            Shape (A, K), rows on the simplex. It has no rows if nothing is asked for.
        """
        if ASKED in received:
            images = images[self._mask(ASKED, received)]
        if not len(images):
            return torch.empty((0, self.data.classes), device=self.device)
        predictions = yield from self.predict(images, temperature)
        return predictions

    def _mask(self, name: str, received: Arrays) -> Tensor:
        """Return a message's mask of P samples. Without one, all samples are selected."""
        size = self.run.plan.public_size
        mask = unpacked_mask(received[name], size) if name in received else np.ones(size, np.bool_)
        return self.tensor(mask)

    def received_predictions(self, name: str, received: Arrays) -> Tensor:
        """Decode the probabilities of a message.

        Returns
        -------
        Tensor
            Shape (..., P, K) float32, on the device.
        """
        probabilities = self.settings.wire.received(name, received)
        return torch.from_numpy(probabilities).to(self.device)

    def release(
        self, predictions: Tensor, metrics: dict[str, float], server_round: int
    ) -> TrainReply:
        """Reply with predictions, clipped and with noise if the settings ask for it.

        With noise no metrics are sent, because losses and clusters are private too.

        Parameters
        ----------
        predictions : Tensor
            Shape (A, K), rows on the simplex. Without rows, nothing is sent.
        metrics : dict of str to float
            Numbers for the server, if there is no noise.
        server_round : int
            Reproducible noise depends on it.

        Raises
        ------
        PolicyError
            If the release would exceed the node's budget.
        """
        settings, wire = self.settings, self.settings.wire
        if not len(predictions):
            return TrainReply(metrics={} if settings.noise_multiplier else metrics)
        released = predictions.cpu().numpy()
        if settings.noise_multiplier:
            self.note_release(server_round)
            released = noised_predictions(
                released, settings.clip_norm, settings.noise_multiplier, self._noise(server_round)
            )
            return TrainReply(wire.encode(PREDICTIONS, released))
        if settings.clip_norm:
            released = clip_towards_uniform(released, settings.clip_norm)
        return TrainReply(wire.encode(PREDICTIONS, released), metrics)

    @property
    def release_entry(self) -> dict[str, float]:
        """What a release adds to the node's ledger; nothing without noise."""
        noise = self.settings.noise_multiplier
        return {NOISE: noise} if noise else {}

    def note_release(self, server_round: int) -> None:
        """Write a release to the node's ledger; see `PrivacyLedger.record`."""
        if ledger := self.node.ledger:
            ledger.record(self.release_entry, self.request.run_id, server_round)

    def _noise(self, server_round: int) -> NormalDraws:
        """Return what draws the noise. It is secret unless the settings have a seed."""
        if self.settings.noise_seed < 0:
            return secret_normal
        return self._repeatable(server_round).standard_normal

    def _repeatable(self, server_round: int) -> np.random.Generator:
        """Return the generator of noise that whoever knows the seed can repeat."""
        seed = self.settings.noise_seed
        return random_generator(seed, "prediction-noise", server_round, self.partition_id)
