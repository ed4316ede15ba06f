"""What a strategy asks of the app where the server works with models, not only with vectors."""

from typing import Protocol

from strategies.core.replies import Arrays


class ServerModels(Protocol):
    """The run's models on the server; strategies know them as vectors by kind alone."""

    def initial(self, number: int = 0) -> Arrays:
        """Return fresh weights of the run's first architecture.

        Parameters
        ----------
        number : int
            Which draw; 0 is the initial global model.
        """
