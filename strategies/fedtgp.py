"""FedTGP: the server trains global prototypes with an adaptive margin between classes.

J. Zhang, Y. Liu, Y. Hua, J. Cao, *FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced
Contrastive Learning for Data and Model Heterogeneity in Federated Learning*, AAAI 2024,
arXiv:2401.03230.

Averaging prototypes of heterogeneous models, as in FedProto, blurs the boundaries of classes. Here
the global prototype of class k is ``g(e_k)``, a learned vector through two linear layers, trained
on each client's prototype P of class c by

    -log exp(-(|P - g_c| + margin)) / (exp(-(|P - g_c| + margin)) + Σ_{k≠c} exp(-|P - g_k|)),

where the margin is the largest distance between two classes' mean prototypes, at most a threshold.

Differences from the paper
--------------------------
- Those of `strategies.fedproto`, whose client is used with the trained prototypes.
- The server takes one step per client on all its prototypes; the paper draws batches of ten. There
  are no steps for classes that no client of the round holds.
"""

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.randomness import random_generator
from strategies.core.replies import Arrays
from strategies.core.search import SearchRange
from strategies.fedproto import FedProto, PrototypeSettings
from strategies.prototypes import mean_by_class

Generator = dict[str, NDArray[np.float32]]
"""``vectors`` (K, d), ``hidden`` (d, d), ``hidden-bias``, ``output`` (d, d), ``output-bias``."""


class FedTGPSettings(PrototypeSettings):
    """Settings of FedTGP.

    Attributes
    ----------
    margin_threshold : float
        tau, the upper limit of the margin between classes.
    server_learning_rate : float
        Step size of the server when it trains the prototypes.
    server_epochs : int
        S, the number of passes of the server over the prototypes of a round's clients.
    """

    table = "fedtgp"
    margin_threshold: float = Field(default=100.0, ge=0)
    server_learning_rate: Annotated[float, SearchRange(0.001, 0.1, log=True)] = Field(
        default=0.01, gt=0
    )
    server_epochs: int = Field(default=100, ge=1)


def adaptive_margin(means: NDArray[Any], counts: NDArray[Any], threshold: float) -> float:
    """Return the largest distance between two classes' mean prototypes, at most a threshold.

    Parameters
    ----------
    means : ndarray
        Shape (R, K, d), the clients' prototypes.
    counts : ndarray
        Shape (R, K), 0 where a client lacks a class; clients with the class have equal weights.
    threshold : float
        tau.
    """
    centers = mean_by_class(means, (counts > 0).astype(np.float64))[counts.any(axis=0)]
    distances = np.linalg.norm(centers[:, None] - centers[None], axis=-1)
    return min(float(distances.max(initial=0.0)), threshold)


def generated(generator: Any) -> Any:
    """Return the global prototypes g(e), shape (K, d), of a generator of tensors."""
    hidden = (generator["vectors"] @ generator["hidden"].T + generator["hidden-bias"]).relu()
    return hidden @ generator["output"].T + generator["output-bias"]


def margin_loss(prototypes: Any, sent: Any, classes: Any, margin: float) -> Any:
    """Return the contrastive loss of the prototypes that one client sent, their mean.

    Parameters
    ----------
    prototypes, sent : Tensor
        Shapes (K, d) and (M, d).
    classes : Tensor
        Shape (M,), the classes of the prototypes sent.
    margin : float
        Added to the distance to the correct prototype.
    """
    from torch.nn import functional  # deferred: clients import this module and train none of it

    # The square root has no gradient at 0.
    distances = ((sent[:, None] - prototypes[None]).square().sum(dim=-1) + 1e-12).sqrt()
    margins = margin * functional.one_hot(classes, len(prototypes))
    return functional.cross_entropy(-(distances + margins), classes)


class FedTGP(FedProto):
    """FedTGP (Algorithm 1): FedProto with prototypes that the server trains.

    Attributes
    ----------
    generator : dict of str to ndarray
        Parameters of the network that generates the prototypes.
    """

    paper = "Zhang et al. 2024"
    settings_type = FedTGPSettings
    settings: FedTGPSettings
    kept = (*FedProto.kept, "generator")
    generator: Generator

    def begin(self, initial: Arrays) -> None:
        """Draw normal vectors, and initialize the layers like linear layers of PyTorch."""
        super().begin(initial)
        draw, width = random_generator(self.plan.seed, "prototypes"), self.width
        vectors = draw.normal(size=(self.plan.num_classes, width))
        shapes: dict[str, tuple[int, ...]] = {"hidden": (width, width), "hidden-bias": (width,)}
        shapes |= {"output": (width, width), "output-bias": (width,)}
        layers = {name: draw.uniform(-1, 1, shape) / width**0.5 for name, shape in shapes.items()}
        self.generator = {
            name: array.astype(np.float32) for name, array in {"vectors": vectors, **layers}.items()
        }

    def new_prototypes(
        self, server_round: int, means: NDArray[np.float32], counts: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Train the generator on the clients' prototypes, client by client."""
        import torch  # deferred, as above

        settings = self.settings
        margin = adaptive_margin(means, counts, settings.margin_threshold)
        generator = {
            name: torch.tensor(array, requires_grad=True) for name, array in self.generator.items()
        }
        optimizer = torch.optim.SGD(generator.values(), settings.server_learning_rate)
        pairs = [
            (torch.tensor(sent[held > 0]), torch.tensor(np.flatnonzero(held)))
            for sent, held in zip(means, counts, strict=True)
            if held.any()
        ]
        for _ in range(settings.server_epochs):
            for sent, classes in pairs:
                optimizer.zero_grad()
                margin_loss(generated(generator), sent, classes, margin).backward()
                optimizer.step()
        self.generator = {name: tensor.detach().numpy() for name, tensor in generator.items()}
        return generated(generator).detach().numpy()
