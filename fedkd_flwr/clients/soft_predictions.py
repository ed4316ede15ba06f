"""What clients share that exchange soft predictions: receive lessons, release predictions."""

import math

import numpy as np
import torch
from torch import Tensor

from fedkd_flwr.clients import memory
from fedkd_flwr.clients.base import Arrays, PersonalClient, TrainReply
from fedkd_flwr.clients.steps import yields_jobs
from fedkd_flwr.data.public import public_subset
from fedkd_flwr.training.jobs import Steps
from strategies.core.caching import ASKED, TAUGHT, unpacked
from strategies.core.privacy import clip_towards_uniform, noised_predictions
from strategies.core.randomness import random_generator
from strategies.soft_predictions import PREDICTIONS, SoftPredictionSettings

LESSONS = "lessons"
"""Name of a client's memory of what it was taught on the public pool, with `cache_rounds`."""


class LostLessonsError(RuntimeError):
    """A client that does not remember what the server has sent it; it is sent all of it again."""


def shelved(shelf: Tensor | None, rows: Tensor, samples: Tensor, pool: int) -> Tensor:
    """Return a client's lessons with new ones in their places.

    Parameters
    ----------
    shelf : Tensor or None
        Shape (..., pool, K), NaN where nothing was taught; None before the first. One with more
        or fewer centroids than come now is out of date as a whole.
    rows : Tensor
        Shape (..., n, K), the new ones.
    samples : Tensor
        Shape (n,), to which samples of the pool they belong.
    pool : int
        Samples of the public pool.
    """
    shape = (*rows.shape[:-2], pool, rows.shape[-1])
    if shelf is None or shelf.shape != shape:
        shelf = torch.full(shape, math.nan)
    shelf = shelf.to(rows.device, copy=True)
    shelf[..., samples, :] = rows
    return shelf


class SoftPredictionClient(PersonalClient):
    """A client that learns from soft predictions and replies with its own."""

    settings: SoftPredictionSettings

    def lessons(self, name: str, received: Arrays, drawn_in: int) -> Tensor | None:
        """Return what a message teaches, with what the client holds of it already.

        Parameters
        ----------
        name : str
            Name of the array in which lessons travel.
        received : dict of str to ndarray
            Arrays of the message.
        drawn_in : int
            The round that drew the public samples of these lessons.

        Returns
        -------
        Tensor or None
            Shape (..., P, K) float32, on the device; None before there are lessons.

        Raises
        ------
        LostLessonsError
            If the client should hold a lesson and does not.
        """
        if name not in received and TAUGHT not in received:
            return None
        if not self.settings.cache_rounds:
            return self.received_predictions(name, received)
        pool, plan = len(self.data.public_images), self.run.plan
        drawn_in = self.course.drawn_in(drawn_in)
        subset = self.tensor(public_subset(pool, plan.public_size, plan.seed, drawn_in))
        shelf = (memory.load_tensors(self.context, LESSONS) or {}).get(name)
        if name in received:
            rows = self.received_predictions(name, received)
            shelf = shelved(shelf, rows, subset[self._mask(TAUGHT, received)], pool)
            memory.save_tensors(self.context, LESSONS, {name: shelf})
        if shelf is None or (lessons := shelf.to(self.device)[..., subset, :]).isnan().any():
            raise LostLessonsError("it does not remember all lessons that it was sent")
        return lessons

    @yields_jobs
    def answers(self, received: Arrays, images: Tensor, temperature: float) -> Steps[Tensor]:
        """Predict on those of a round's public samples that the message asks for.

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
            Shape (A, K), rows on the simplex; no rows where nothing is asked.
        """
        if ASKED in received:
            images = images[self._mask(ASKED, received)]
        if not len(images):
            return torch.empty((0, self.data.classes), device=self.device)
        predictions = yield from self.predict(images, temperature)
        return predictions

    def _mask(self, name: str, received: Arrays) -> Tensor:
        """Return a message's mask of P samples; all where there is none."""
        size = self.run.plan.public_size
        mask = unpacked(received[name], size) if name in received else np.ones(size, np.bool_)
        return self.tensor(mask)

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
            Shape (A, K), rows on the simplex; without rows nothing is released.
        metrics : dict of str to float
            Numbers for the server where there is no noise.
        server_round : int
            Repeatable noise depends on it.
        """
        settings, wire = self.settings, self.settings.wire
        if not len(predictions):
            return TrainReply(metrics={} if settings.noise_multiplier else metrics)
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
