"""Clients that search architectures: alternate steps on network and architecture weights."""

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor, nn

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.training.jobs import TrainJob
from fedkd_flwr.training.loop import SGD, Adam, Batch, Loss, random_batches, refresh_statistics
from fedkd_flwr.training.losses import cross_entropy
from strategies.supernets import SearchSettings


class SupernetClient(ParameterClient):
    """Trains a supernet's omega and alpha alternately (first-order DARTS).

    Both use all training data by default. With an `alpha_share`, alpha is trained on samples that
    are not used for omega.
    """

    keeps_model = False
    settings: SearchSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train the received supernet, and reply with it."""
        self.receive_model(received)
        loss = self.search(server_round)
        refresh_statistics(self.model, self.data.train_images)
        return TrainReply(self.model_arrays(), {"train-loss": loss})

    def search_samples(self) -> tuple[Tensor, Tensor]:
        """Return the training samples for omega and for alpha, the same in all rounds."""
        share = self.settings.alpha_share
        if not share:
            return self.trainable, self.trainable
        if self.data.num_train < 2:
            raise ValueError(
                "a search needs at least 2 training samples, one for each part; or set "
                f"{self.settings.table}.alpha-share = 0"
            )
        generator = self.session.local.lasting_generator("search-halves", self.partition_id)
        order = torch.from_numpy(generator.permutation(self.data.num_train))
        for_omega = max(1, int(self.data.num_train * (1 - share)))
        return order[:for_omega], order[for_omega:]

    def search(self, server_round: int) -> float:
        """Alternate one alpha step and one omega step for E epochs over omega's samples.

        A network without architecture weights, such as one with a fixed genotype, is trained on all
        training samples.
        """
        alphas, omegas = split_parameters(self.model)
        if not alphas:
            return self.train_locally(server_round)
        for_omega, for_alpha = self.search_samples()
        size = self.session.run.training.batch_size
        draw = self.session.private_generator("alpha-batches", server_round)
        alpha_positions = random_batches(len(for_alpha), size, draw)
        alpha_batches = self.session.batches_at(for_alpha[chosen] for chosen in alpha_positions)
        omega_positions = self.session.private_positions(server_round, len(for_omega))
        omega_batches = self.session.batches_at(for_omega[chosen] for chosen in omega_positions)
        loss: float = self.do(
            TrainJob(
                self.model,
                self.search_loss(),
                self.session.local.optimizer(omegas, server_round),
                self.search_batches(alpha_batches, omega_batches),
                alternate=self.alpha_optimizer(alphas),
            )
        )
        return loss

    def search_loss(self) -> Loss:
        """Return the loss of the steps on alpha and on omega."""
        return cross_entropy

    def search_batches(
        self, for_alpha: Iterator[Batch], for_omega: Iterator[Batch]
    ) -> Iterator[Batch]:
        """Yield a batch for alpha and one for omega in turn, until those for omega end."""
        return chain.from_iterable(zip(for_alpha, for_omega, strict=False))

    def alpha_optimizer(self, alphas: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Build the optimizer of the architecture weights, a new one in each round."""
        settings = self.settings
        rate, decay = settings.alpha_learning_rate, settings.alpha_weight_decay
        if settings.alpha_optimizer == "adam":
            return Adam(alphas, rate, betas=(0.5, 0.999), weight_decay=decay)
        return SGD(alphas, rate, self.session.run.training.momentum, weight_decay=decay)


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return a model's architecture weights alpha and its network weights omega."""
    alphas = [value for name, value in model.named_parameters() if name.startswith("alpha")]
    omegas = [value for name, value in model.named_parameters() if not name.startswith("alpha")]
    return alphas, omegas
