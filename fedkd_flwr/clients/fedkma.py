"""FedKMA's client: search on two parts of the data, report mean logits, weigh the others."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.fedavg import FedAvgClient
from fedkd_flwr.training.loop import (
    BatchLoss,
    cross_entropy_on,
    predict_logits,
    random_batches,
    refresh_statistics,
    require_finite,
)
from strategies.fedkma import (
    CLASS_FLAGS,
    CLASS_LOGITS,
    SHARE_KNOWLEDGE,
    FedKMASettings,
    sharing_row,
)
from strategies.randomness import random_generator


def class_mean_logits(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean logit vector of each class's samples (Eq. 10).

    Parameters
    ----------
    logits : Tensor
        Shape (n, K).
    labels : Tensor
        Shape (n,), int64.

    Returns
    -------
    means : Tensor
        Shape (K, K), row k the mean over the samples of class k; rows of absent classes have
        no meaning.
    flags : Tensor
        Shape (K,), 1 where the class is present, else 0.
    """
    num_classes = logits.shape[1]
    members = functional.one_hot(labels, num_classes).to(logits.dtype)
    counts = members.sum(dim=0)
    means = members.T @ logits / counts.clamp(min=1)[:, None]
    return means, (counts > 0).to(logits.dtype)


class FedKMAClient(FedAvgClient):
    """Trains a supernet's omega and alpha in turns (first-order DARTS).

    A share of the training data is for alpha alone: alpha is judged on samples that omega has
    not seen.
    """

    settings: FedKMASettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train and reply with model and mean logits, or turn a row of H into a row of M."""
        if phase == SHARE_KNOWLEDGE:
            row = sharing_row(
                received["irrelevancy"], self.label_distribution(), self.settings.as_printed
            )
            return TrainReply({"sharing": row.astype(np.float32)})
        self.receive_model(received)
        loss = self.search(server_round)
        refresh_statistics(self.model, self.data.train_images)
        logits = predict_logits(self.model, self.data.train_images)
        means, flags = class_mean_logits(logits, self.data.train_labels)
        arrays = self.model_arrays()
        arrays[CLASS_LOGITS], arrays[CLASS_FLAGS] = means.cpu().numpy(), flags.cpu().numpy()
        return TrainReply(arrays, {"train-loss": loss})

    def label_distribution(self) -> np.ndarray:
        """Return p_i, the shares of the classes in the training data, shape (K,)."""
        counts = self.data.class_counts.cpu().numpy().astype(np.float64)
        return counts / counts.sum()

    def search_samples(self) -> tuple[Tensor, Tensor]:
        """Return the positions of the training samples for omega and for alpha.

        They stay the same in all rounds. With an `alpha_share` of 0 both are all of them.

        Raises
        ------
        ValueError
            If there is a single sample to share.
        """
        share = self.settings.alpha_share
        if not share:
            everything = torch.arange(self.num_examples, device=self.device)
            return everything, everything
        if self.num_examples < 2:
            raise ValueError(
                "a search needs at least 2 training samples, one for each part, or "
                "fedkma.alpha-share = 0"
            )
        generator = random_generator(self.run.plan.seed, "search-halves", self.partition_id)
        order = torch.from_numpy(generator.permutation(self.num_examples)).to(self.device)
        for_omega = max(1, int(self.num_examples * (1 - share)))
        return order[:for_omega], order[for_omega:]

    def search(self, server_round: int) -> float:
        """Alternate one alpha step and one omega step for E epochs over omega's samples.

        A network without architecture weights, such as that of a fixed genotype, needs no
        samples for them: all its weights are trained on all training samples.

        Returns
        -------
        float
            Mean omega loss over all samples seen.
        """
        alphas, omegas = split_parameters(self.model)
        if not alphas:
            return self.train_locally(server_round)
        for_omega, for_alpha = self.search_samples()
        omega_loss, alpha_loss = self.loss_on(for_omega), self.loss_on(for_alpha)
        training, settings = self.run.training, self.settings
        omega_optimizer = torch.optim.SGD(
            omegas,
            training.learning_rate,
            training.momentum,
            weight_decay=training.weight_decay,
        )
        alpha_optimizer = torch.optim.Adam(
            alphas,
            settings.alpha_learning_rate,
            betas=(0.5, 0.999),
            weight_decay=settings.alpha_weight_decay,
        )
        alpha_batches = random_batches(
            len(for_alpha), training.batch_size, self.generator("alpha-batches", server_round)
        )
        self.model.train()
        total, seen = torch.zeros((), device=self.device), 0
        for positions in self.private_batches(server_round, len(for_omega)):
            step(self.model, alpha_loss, next(alpha_batches), alpha_optimizer)
            total += step(self.model, omega_loss, positions, omega_optimizer) * len(positions)
            seen += len(positions)
        mean_loss = float(total) / max(seen, 1)
        require_finite(mean_loss)
        return mean_loss

    def loss_on(self, positions: Tensor) -> BatchLoss:
        """Return the cross-entropy on one part of the training data."""
        return cross_entropy_on(
            self.data.train_images[positions], self.data.train_labels[positions]
        )


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return a model's architecture weights alpha and its network weights omega."""
    alphas = [value for name, value in model.named_parameters() if name.startswith("alpha")]
    omegas = [value for name, value in model.named_parameters() if not name.startswith("alpha")]
    return alphas, omegas


def step(
    model: nn.Module, loss: BatchLoss, positions: Tensor, optimizer: torch.optim.Optimizer
) -> Tensor:
    """Take one step on the parameters of an optimizer; the model's others get no gradient.

    Parameters
    ----------
    model : nn.Module
        Changed in those parameters alone, batch normalization's statistics aside.
    loss : callable
        Mean loss on the samples at given positions.
    positions : Tensor
        Shape (batch,), int64.
    optimizer : torch.optim.Optimizer
        Over some parameters of the model, in one group.

    Returns
    -------
    Tensor
        The loss before the step, detached, on the device.
    """
    parameters = optimizer.param_groups[0]["params"]
    value = loss(model, positions.to(parameters[0].device))
    gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    return value.detach()
