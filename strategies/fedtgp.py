"""FedTGP: the server trains global prototypes with an adaptive margin between classes.

Averaging prototypes of heterogeneous models, as in FedProto, blurs the boundaries of classes. Here
the global prototype of class k is ``g(e_k)``, a learned vector through two linear layers, trained
on each client's prototype P of class c by

    -log exp(-(|P - g_c| + margin)) / (exp(-(|P - g_c| + margin)) + Σ_{k≠c} exp(-|P - g_k|)),

where the margin is the largest distance of a class's mean prototype to its nearest one, at most a
threshold.

Differences from the paper
--------------------------
- The margin follows the authors' code. The paper's formula has the largest distance between any two
  classes.
- Those of `strategies.fedproto`, whose client is used with the trained prototypes.
- The server takes one step per client on all its prototypes; the paper draws batches of ten.
- A class that no client of the round holds is trained as a negative alone, and clients are sent its
  former prototype. The authors' code sends the new one.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.randomness import drawn_layers, random_generator
from strategies.core.replies import Arrays, Reply
from strategies.core.settings_groups import ANY_ON_NODES, SearchRange
from strategies.fedproto import (
    FedProto,
    PrototypeSettings,
    PrototypeState,
    no_prototypes,
    with_prototypes,
)
from strategies.method import ServerModels
from strategies.prototypes import mean_by_class, stacked


class FedTGPSettings(PrototypeSettings):
    """Settings of FedTGP."""

    table = "fedtgp"
    margin_threshold: Annotated[float, ANY_ON_NODES] = Field(default=100.0, ge=0)
    """tau, the upper limit of the margin between classes."""
    server_learning_rate: Annotated[float, SearchRange(0.001, 0.1, log=True), ANY_ON_NODES] = Field(
        default=0.01, gt=0
    )
    """Step size of the server when it trains the prototypes."""
    server_epochs: Annotated[int, ANY_ON_NODES] = Field(default=100, ge=1)
    """S, the number of passes of the server over the prototypes of a round's clients."""


def adaptive_margin(means: NDArray[Any], counts: NDArray[Any], threshold: float) -> float:
    """Return the largest distance of a class's mean prototype to its nearest one, at most tau.

    Prototypes (R, K, d); counts (R, K) are 0 where a client lacks a class.
    """
    centers = mean_by_class(means, (counts > 0).astype(np.float64))[counts.any(axis=0)]
    if len(centers) < 2:
        return 0.0
    distances = np.linalg.norm(centers[:, None] - centers[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    return min(float(distances.min(axis=0).max()), threshold)


@dataclass(frozen=True)
class FedTGPState(PrototypeState):
    """The global prototypes, and what generates them."""

    generator: dict[str, NDArray[np.float32]]
    """Parameters of the network that generates the prototypes: ``vectors`` (K, d), ``hidden`` (d,
    d), ``hidden-bias`` (d,), ``output`` (d, d) and ``output-bias`` (d,)."""


class FedTGP(FedProto):
    """FedTGP (Algorithm 1): FedProto with prototypes that the server trains."""

    record = FedProto.record.derived(
        paper=Paper(
            authors="J. Zhang, Y. Liu, Y. Hua, J. Cao",
            title="FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced "
            "Contrastive Learning for Data and Model Heterogeneity in Federated "
            "Learning",
            venue="AAAI",
            year=2024,
            arxiv="2401.03230",
        ),
        settings_type=FedTGPSettings,
    )
    settings: FedTGPSettings
    state: FedTGPState
    server_models: ServerModels

    def begin(self, initial: Arrays) -> FedTGPState:
        classes, draw = self.plan.num_classes, random_generator(self.plan.seed, "prototypes")
        width, vectors = self.width, draw.normal(size=(classes, self.width))
        layers = drawn_layers(draw, width, width, width)
        generator = {"vectors": vectors.astype(np.float32), **layers}
        return FedTGPState(no_prototypes(classes, width), generator)

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> FedTGPState:
        """Train the generator on the clients' prototypes, client by client."""
        settings = self.settings
        means, counts = stacked(replies)
        generator, new = self.server_models.train_prototypes(
            self.state.generator,
            [
                (own[held > 0], np.flatnonzero(held))
                for own, held in zip(means, counts, strict=True)
                if held.any()
            ],
            margin=adaptive_margin(means, counts, settings.margin_threshold),
            epochs=settings.server_epochs,
            learning_rate=settings.server_learning_rate,
        )
        return FedTGPState(with_prototypes(self.state.prototypes, new, counts), generator)
