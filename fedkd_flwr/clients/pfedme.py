"""The client of pFedMe."""

import itertools
from collections.abc import Iterable, Iterator

from torch import Tensor

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.parameters import PersonalModelClient
from fedkd_flwr.training.jobs import TrainJob
from fedkd_flwr.training.loop import SGD, Batch, random_batches
from fedkd_flwr.training.losses import Proximal, fill_parameters, parameters_of
from strategies.pfedme import PFedMeSettings


def moved_towards(local: list[Tensor], personal: Iterable[Tensor], share: float) -> list[Tensor]:
    """Return ``w - share * (w - theta)`` for each tensor; the share is ``eta lambda``."""
    return [w - share * (w - theta) for w, theta in zip(local, personal, strict=True)]


class PFedMeClient(PersonalModelClient):
    """Trains theta close to w and moves w towards it. Sends w and keeps theta."""

    settings: PFedMeSettings

    def private_batches(self, server_round: int) -> Iterator[Batch]:
        """Yield the round's number of random batches, all of full size.

        theta depends on the last batch only. The small last batch of an epoch would give a poor
        theta.
        """
        size, local = self.session.run.training.batch_size, self.session.local
        samples, generator = self.data.num_train, local.batch_generator(server_round)
        count = sum(1 for _ in local.positions(samples, server_round))
        return local.batches(
            self.data, itertools.islice(random_batches(samples, size, generator), count)
        )

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """For each batch of the round, take K steps on theta and one on w."""
        self.receive_model(received)
        settings, training = self.settings, self.session.run.training
        weight = settings.personalization_weight
        rate = self.session.local.rate(server_round)
        optimizer = SGD(
            self.model.parameters(),
            settings.personal_learning_rate,
            weight_decay=training.weight_decay,
        )
        local, losses, samples = parameters_of(self.model), 0.0, 0
        for batch in self.private_batches(server_round):
            loss = Proximal(local, weight)
            steps = [batch] * settings.personal_steps
            mean_loss = self.do(TrainJob(self.model, loss, optimizer, steps))
            local = moved_towards(local, parameters_of(self.model), rate * weight)
            losses += mean_loss * len(batch[0])
            samples += len(batch[0])
        personal = parameters_of(self.model)
        fill_parameters(self.model, local)
        arrays = self.model_arrays()
        fill_parameters(self.model, personal)
        return TrainReply(arrays, {"train-loss": losses / samples})
