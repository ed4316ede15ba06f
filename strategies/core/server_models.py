"""What a strategy asks of the app: models, not only vectors, and where public samples lie."""

from typing import Any, Protocol

from numpy.typing import NDArray

from strategies.core.replies import Arrays


class ServerModels(Protocol):
    """The run's models on the server; strategies know them as vectors by kind alone.

    Attributes
    ----------
    names : tuple of str
        The run's architectures, each once.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The run's architectures, each once."""

    @property
    def public_pool_size(self) -> int:
        """Samples of the whole public set."""

    def public_subset(self, server_round: int) -> NDArray[Any]:
        """Return where in the public set the samples of a round lie, (P,) in ascending order."""

    def initial(self, number: int = 0, name: str = "") -> Arrays:
        """Return fresh weights.

        Parameters
        ----------
        number : int
            Which draw; 0 is the initial global model.
        name : str
            The architecture; empty for the run's first.
        """

    def shapes(self, name: str) -> NDArray[Any]:
        """Return the rows and columns of each stretch of an architecture's weights, (L, 2)."""

    def predict(self, name: str, model: Arrays, server_round: int) -> NDArray[Any]:
        """Return a model's logits on the server's public samples of a round, (P, K)."""

    def distil(
        self,
        name: str,
        model: Arrays,
        logits: NDArray[Any],
        server_round: int,
        *,
        steps: int,
        batch_size: int,
        learning_rate: float,
    ) -> dict[str, NDArray[Any]]:
        """Train a model towards soft predictions on the server's public samples of a round.

        Parameters
        ----------
        name : str
            Its architecture.
        model : mapping of str to ndarray
            Where it starts; left as it is.
        logits : ndarray
            Shape (P, K), the teacher's.
        server_round : int
            The samples and the batches depend on it.
        steps, batch_size, learning_rate : int, int, float
            Steps of Adam, public samples in each, and its step size.

        Returns
        -------
        dict of str to ndarray
            The trained model; the one that came in where training diverged.
        """
