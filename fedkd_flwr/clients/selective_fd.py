"""The client of Selective-FD."""

import torch
from torch import Tensor

from fedkd_flwr.clients.base import Arrays, Training, TrainReply
from fedkd_flwr.clients.kt_pfl import KTpFLClient
from fedkd_flwr.clients.steps import yields_jobs
from fedkd_flwr.training.regularizers import parameters_of, relative_distance
from strategies.core.caching import packed, unpacked
from strategies.selective_fd import KEPT, SELECTED, SelectiveFDSettings

AUXILIARY = 250
"""Number of uniform samples with which a density is compared."""


def gaussian_kernel(first: Tensor, second: Tensor, width: float) -> Tensor:
    """Return ``exp(-||x - y||² / (2 width²))`` for all pairs of rows, (n, m)."""
    return torch.exp(-torch.cdist(first, second).square() / (2 * width**2))


class DensityRatio:
    """KuLSIF: the ratio of the density of known samples to that of auxiliary ones.

    Parameters
    ----------
    known, auxiliary : Tensor
        Shapes (m, d) and (n, d), float64.
    width : float
        Width of the kernel.
    ridge : float
        lambda of the regularization.
    """

    def __init__(self, known: Tensor, auxiliary: Tensor, width: float, ridge: float) -> None:
        self.known, self.auxiliary, self.width, self.ridge = known, auxiliary, width, ridge
        count = len(auxiliary)
        system = gaussian_kernel(auxiliary, auxiliary, width) / count
        system += ridge * torch.eye(count, dtype=system.dtype, device=system.device)
        to_known = gaussian_kernel(auxiliary, known, width).mean(dim=1)
        self.weights = torch.linalg.solve(system, -to_known / (count * ridge))

    def __call__(self, samples: Tensor) -> Tensor:
        """Return the ratio at samples (k, d), shape (k,)."""
        auxiliary = gaussian_kernel(samples, self.auxiliary, self.width) @ self.weights
        return auxiliary + gaussian_kernel(samples, self.known, self.width).mean(1) / self.ridge


class SelectiveFDClient(KTpFLClient):
    """Learns from the kept samples of the teacher, and says which predictions count."""

    settings: SelectiveFDSettings

    @yields_jobs
    def train(self, received: Arrays, server_round: int, phase: str) -> Training:
        """Distill from the kept samples, train locally, and reply with predictions and mask."""
        metrics = {}
        teacher = self.lessons("teacher", received, drawn_in=server_round - 1)
        if teacher is not None and received[KEPT].any():
            kept = self.tensor(unpacked(received[KEPT], len(teacher)))
            images = self.public_images(server_round - 1)[kept]
            before = parameters_of(self.model)
            loss = yield from self.distill_on(images, teacher[kept], server_round)
            metrics["distillation-loss"] = loss
            metrics["moved-public"] = relative_distance(self.model, before)
        before = parameters_of(self.model)
        metrics["train-loss"] = yield from self.train_locally(server_round)
        metrics["moved-private"] = relative_distance(self.model, before)
        images = self.public_images(server_round)
        predictions = yield from self.answers(received, images, self.settings.temperature)
        if not len(predictions):
            return TrainReply(metrics=metrics)
        selected = self.selected(images)
        predictions[~selected] = 1 / self.data.classes
        reply = self.release(predictions, metrics, server_round)
        mask = {SELECTED: packed(selected.cpu().numpy())}
        return TrainReply({**reply.arrays, **mask}, reply.metrics)

    def selected(self, images: Tensor) -> Tensor:
        """Return which images are like the client's own, shape (P,)."""
        own = self.data.train_images.flatten(1).double()
        generator = self.generator("density-ratio", 0)
        order = torch.from_numpy(generator.permutation(len(own))).to(own.device)
        fitted, held = own[order[::2]], own[order[1::2]]
        low, high = float(own.min()), float(own.max())
        uniform = generator.uniform(low, high, size=(AUXILIARY, own.shape[1]))
        width = self.settings.kernel_width or float(torch.pdist(fitted).median())
        auxiliary = torch.from_numpy(uniform).to(own.device)
        ratio = DensityRatio(fitted, auxiliary, width, AUXILIARY**-0.5)
        least = torch.quantile(ratio(held), self.settings.client_quantile)
        return ratio(images.flatten(1).double()) >= least
