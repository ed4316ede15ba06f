"""Protocol by which strategies use models and public samples on the server."""

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from strategies.core.replies import Arrays


class ServerModels(Protocol):
    """The models of a run on the server; strategies handle them as vectors by kind."""

    @property
    def names(self) -> tuple[str, ...]:
        """The distinct architectures of the run."""

    @property
    def feature_width(self) -> int:
        """Number of features that enter the head, for methods that need the same of all clients."""

    def public_subset(self, server_round: int) -> NDArray[Any]:
        """Return the positions of a round's samples in the public set, (P,), ascending."""

    def narrowest(self, shared: str) -> int:
        """Return the smallest number of features of the run's models and of a shared one."""

    def initial(self, number: int = 0, name: str = "") -> Arrays:
        """Return fresh weights; draw 0 of the first architecture is the initial global model."""

    def initial_shared(self, name: str = "", width: int = 0) -> Arrays:
        """Return fresh weights of a shared model, drawn apart from those of private models.

        A `width` other than 0 is reached by a projection before the head.
        """

    def shapes(self, name: str) -> NDArray[Any]:
        """Return rows and columns of each weight of an architecture, (L, 2)."""

    def predict(self, name: str, model: Arrays, server_round: int) -> NDArray[Any]:
        """Return a model's logits on the server's public samples of a round, (P, K)."""

    def fit(
        self,
        name: str,
        model: Arrays,
        samples: NDArray[Any],
        teacher: NDArray[Any],
        server_round: int,
        *,
        steps: int,
        batch_size: int,
        learning_rate: float,
        optimizer: str = "adam",
    ) -> dict[str, NDArray[Any]]:
        """Train a model towards a teacher (n, K), rows on the simplex, on public samples (n,).

        Return the trained model, or the initial one if training diverged. The round determines the
        batches.
        """

    def train_feature_generator(
        self,
        generator: Arrays,
        models: Sequence[Arrays],
        shares: NDArray[Any],
        class_shares: NDArray[Any],
        server_round: int,
        *,
        diversity: float,
        steps: int,
        batch_size: int,
        learning_rate: float,
    ) -> dict[str, NDArray[Any]]:
        """Train FedGen's generator against the heads of R models; see `strategies.fedgen`.

        `shares` (R, K) weigh the models for each class, classes are drawn by `class_shares` (K,),
        and `diversity` weighs that of features. Return the given generator if training diverged.
        """

    def train_prototypes(
        self,
        generator: Arrays,
        sent: Sequence[tuple[NDArray[Any], NDArray[Any]]],
        *,
        margin: float,
        epochs: int,
        learning_rate: float,
    ) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """Train FedTGP's generator on the prototypes (M, d) and classes (M,) that clients sent.

        One step of gradient descent for each client and epoch. Return the generator, and the
        prototypes that it generates, (K, d).
        """
