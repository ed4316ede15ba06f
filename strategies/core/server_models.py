"""Protocol by which strategies use models and public samples on the server."""

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from strategies.core.layer_choice import LayerChoice
from strategies.core.replies import Arrays


class ServerModels(Protocol):
    """The models of a run on the server; strategies handle them as vectors by kind.

    Attributes
    ----------
    names : tuple of str
        The distinct architectures of the run.
    """

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
        """Return fresh weights.

        Parameters
        ----------
        number : int
            Number of the draw; 0 is the initial global model.
        name : str
            The architecture; empty for the first of the run.
        """

    def initial_shared(self, name: str = "", width: int = 0) -> Arrays:
        """Return fresh weights of a model that clients hold beside their private one.

        They are drawn apart from those of private models, so that no client's two models start
        equal.

        Parameters
        ----------
        name : str
            The architecture; empty for the first of the run.
        width : int
            Its number of features, reached by a projection before the head; 0 for that of the run.
        """

    def layout(
        self, name: str = "", layers: LayerChoice = slice(None)
    ) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return kind and shape of an architecture's arrays by name, in the order of its vectors.

        Parameters
        ----------
        name : str
            The architecture; empty for the first of the run.
        layers : slice or str
            The layers that are sent.
        """

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
        """Train a model towards probabilities on any public samples of the server.

        Parameters
        ----------
        name : str
            Architecture of the model.
        model : mapping of str to ndarray
            Initial weights; not modified.
        samples : ndarray
            Shape (n,), positions in the public set.
        teacher : ndarray
            Shape (n, K), rows on the simplex.
        server_round : int
            Determines the batches.
        steps, batch_size, learning_rate : int, int, float
            Number of steps, public samples per step, and step size.
        optimizer : str
            ``adam`` or ``sgd``.

        Returns
        -------
        dict of str to ndarray
            The trained model, or the initial one if training diverged.
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
        """Train the generator of features against the heads of models, as FedGen does.

        Parameters
        ----------
        generator : mapping of str to ndarray
            See `strategies.fedgen.FedGenState`; not modified.
        models : sequence of mapping of str to ndarray
            R models of the run's architecture.
        shares : ndarray
            Shape (R, K), the weight of each model for a class.
        class_shares : ndarray
            Shape (K,), the probabilities by which classes are drawn.
        server_round : int
            Determines the draws.
        diversity : float
            Weight of the diversity of features.
        steps, batch_size, learning_rate : int, int, float
            Steps of Adam, features per step, and step size.

        Returns
        -------
        dict of str to ndarray
            The trained generator, or the given one if training diverged.
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
        """Train the generator of global prototypes on those of the clients, as FedTGP does.

        Parameters
        ----------
        generator : mapping of str to ndarray
            See `strategies.fedtgp.FedTGPState`; not modified.
        sent : sequence of (ndarray, ndarray)
            For each client the prototypes that it sent, (M, d), and their classes, (M,).
        margin : float
            Added to the distance of a prototype to that of its class.
        epochs : int
            Passes over the clients, with one step of gradient descent each.
        learning_rate : float
            Its step size.

        Returns
        -------
        dict of str to ndarray
            The trained generator.
        ndarray
            The prototypes that it generates, (K, d).
        """
