"""The client of Selective-FD."""

import numpy as np
import torch
from torch import Tensor

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.kt_pfl import KTpFLClient
from strategies.selective_fd import KEPT, SELECTED, SelectiveFDSettings

AUXILIARY = 250  # number of uniform samples with which a density is compared


def gaussian_kernel(first: Tensor, second: Tensor, width: float) -> Tensor:
    """Return ``exp(-||x - y||² / (2 width²))`` for all pairs of rows, (n, m)."""
    return torch.exp(-torch.cdist(first, second).square() / (2 * width**2))


def typical_distance(known: Tensor, auxiliary: Tensor) -> float:
    """Return the median distance between known samples, else to the auxiliary ones, else 1."""
    medians = (torch.pdist(known).median(), torch.cdist(known, auxiliary).median())
    return next((float(median) for median in medians if median > 0), 1.0)


class DensityRatio:
    """KuLSIF: the ratio of the density of known samples (m, d) to that of auxiliary ones (n, d)."""

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

    def teachers(self, name: str, received: Arrays) -> Tensor | None:
        """Return the teacher of a message, (P, K); None if fewer than two samples of it are kept.

        Batch normalization cannot train on one sample.
        """
        if KEPT not in received or self._mask(KEPT, received).sum() < 2:
            return None
        return super().teachers(name, received)

    def distill(self, teacher: Tensor, server_round: int) -> float:
        """Distill from the teacher on the kept samples of the last round's public subset."""
        kept = self._mask(KEPT, self.session.request.arrays)
        images = self.session.public_images(server_round - 1)[kept]
        return self.distill_on(images, teacher[kept], server_round)

    def release(
        self, predictions: Tensor, metrics: dict[str, float], server_round: int
    ) -> TrainReply:
        """Reply with predictions that are uniform where a sample was not selected, and a mask."""
        if not len(predictions):
            return super().release(predictions, metrics, server_round)
        selected = self.selected(self.session.public_images(server_round))
        predictions[~selected] = 1 / self.data.classes
        reply = super().release(predictions, metrics, server_round)
        mask = {SELECTED: np.packbits(selected.cpu().numpy())}
        return TrainReply({**reply.arrays, **mask}, reply.metrics)

    def selected(self, images: Tensor) -> Tensor:
        """Return which images are like the client's own, shape (P,)."""
        own = self.data.train_images.flatten(1).double()
        generator = self.session.local.lasting_generator("density-ratio", 0, self.partition_id)
        order = torch.from_numpy(generator.permutation(len(own))).to(own.device)
        fitted, held = own[order[::2]], own[order[1::2] if len(own) > 1 else order]
        low, high = float(own.min()), float(own.max())
        uniform = generator.uniform(low, high, size=(AUXILIARY, own.shape[1]))
        auxiliary = torch.from_numpy(uniform).to(own.device)
        width = self.settings.kernel_width or typical_distance(fitted, auxiliary)
        ratio = DensityRatio(fitted, auxiliary, width, AUXILIARY**-0.5)
        least = torch.quantile(ratio(held), self.settings.client_quantile)
        return ratio(images.flatten(1).double()) >= least
