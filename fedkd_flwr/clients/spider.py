"""The client of SPIDER: train the shared supernet, train and prune the personal one."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.clients.supernets import split_parameters
from fedkd_flwr.models.model_pool import borrowed
from fedkd_flwr.models.vectors import fill_from_vectors, model_vectors
from fedkd_flwr.training.loop import Evaluation, evaluate, refresh_statistics
from fedkd_flwr.training.losses import Proximal
from strategies.spider import SpiderSettings

PRUNED = -1e4
"""Architecture weight of a pruned operation.

All other architecture weights keep their small initial values, so its softmax underflows to exactly
zero. Minus infinity would do the same, but infinite weights count as divergence, and their distance
in the proximal term is not a number.
"""


def most_needed(without: Sequence[Evaluation]) -> int:
    """Return the operation whose removal costs most accuracy, by results without each."""
    return min(range(len(without)), key=lambda k: without[k].rank)


def tie_to(shared: nn.Module, personal: nn.Module) -> list[Tensor]:
    """Return the center of the proximal term: w as received, but v for architecture weights."""
    pairs = zip(personal.named_parameters(), shared.parameters(), strict=True)
    return [
        (own if name.startswith("alpha") else other).detach().clone()
        for (name, own), other in pairs
    ]


class SpiderClient(ParameterClient):
    """Keeps a personal supernet, which is `model`, and replies with the shared supernet."""

    settings: SpiderSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Prune the edges that are due, then train both supernets on the same batches."""
        if not self.session.stored_model:
            self.receive_model(received)
        self.prune(server_round)
        with borrowed(self.architectures[0]) as shared:
            fill_from_vectors(shared, received)
            loss = Proximal(tie_to(shared, self.model), self.settings.proximal_weight)
            _, weights = split_parameters(shared)
            self.train_locally(server_round, model=shared, replaced=weights, parameters=weights)
            _, weights = split_parameters(self.model)
            mean_loss = self.train_locally(server_round, loss, replaced=(), parameters=weights)
            arrays = dict(model_vectors(shared))
        return TrainReply(arrays, {"train-loss": mean_loss, "operations": self.num_operations()})

    def num_operations(self) -> int:
        """Return the number of remaining operations of the personal supernet."""
        alphas = split_parameters(self.model)[0]
        return sum(int((alpha > PRUNED).sum()) for alpha in alphas)

    def prune(self, server_round: int) -> None:
        """Choose the operation of random edges, as many as are due in each kind of cell.

        One is due in each round of the schedule; a client that was not sampled then has more.
        """
        generator = self.generator("pruning", server_round)
        for alpha in split_parameters(self.model)[0]:
            schedule = self.settings.schedule(len(alpha), self.session.run.plan.num_server_rounds)
            undecided = torch.nonzero((alpha > PRUNED).sum(dim=1) > 1).flatten().tolist()
            to_come = sum(due > server_round for due in schedule)
            for _ in range(len(undecided) - to_come):
                edge = int(generator.choice(undecided))
                self.decide(alpha, edge)
                undecided.remove(edge)

    @torch.no_grad()
    def decide(self, alpha: Tensor, edge: int) -> None:
        """Keep the operation of an edge that matters most for the validation accuracy.

        The edge's row of the architecture weights (edges, operations) is changed.
        """
        row = alpha[edge].clone()
        candidates = torch.nonzero(row > PRUNED).flatten().tolist()
        without = []
        for left_out in candidates:
            alpha[edge, left_out] = PRUNED
            refresh_statistics(self.model, self.data.train_images)
            data = self.data
            without.append(evaluate(self.model, data.validation_images, data.validation_labels))
            alpha[edge] = row
        kept = candidates[most_needed(without)]
        alpha[edge] = PRUNED
        alpha[edge, kept] = row[kept]
