"""Base of methods whose server mixes the last models of all clients anew for each of them."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from strategies.core.pair_matrix import PairMatrix
from strategies.core.replies import Arrays, Reply
from strategies.method import Results
from strategies.parameters import AVERAGES, LibraryState, LibraryStrategy, Model


@dataclass(frozen=True)
class MixtureState(LibraryState):
    """The clients' last models, and how they are mixed.

    Attributes
    ----------
    attention : PairMatrix
        Weights of the mixtures, (N, N), rows on the simplex; a client without a model on the server
        has weight 1 on itself.
    """

    attention: PairMatrix


class MixtureStrategy(LibraryStrategy):
    """Sends each client a mixture of all clients' last models.

    A method overrides `weights_among`. In the first round, and until its first reply, a client
    receives the initial model.
    """

    matrix_name: ClassVar[str]
    """Name of the weights in the run directory."""

    record = LibraryStrategy.record.derived(evaluates=("received",))
    state: MixtureState

    @abstractmethod
    def weights_among(self, models: Mapping[int, Model]) -> NDArray[np.float64]:
        """Return the weights of the mixtures among some clients' models.

        Parameters
        ----------
        models : mapping of int to dict
            R models by partition-id.

        Returns
        -------
        ndarray
            Shape (R, R), rows on the simplex: receiver, giver.
        """

    def begin(self, initial: Arrays) -> MixtureState:
        """Start with weight 1 of each client on itself."""
        identity = PairMatrix.identity(self.plan.num_clients)
        return MixtureState(dict(initial), library={}, attention=identity)

    def with_more_clients(self) -> MixtureState:
        """Give clients that join weight 1 on themselves."""
        attention = self.state.attention.with_more_clients(self.plan.num_clients, diagonal=1)
        return replace(self.state, attention=attention)

    def aggregate_models(self, server_round: int, models: dict[int, Model]) -> MixtureState:
        """Store the models and recompute the weights among all stored models."""
        library = self.library_with(models)
        attention = self.state.attention.with_members(library)
        weights = self.weights_among(library)
        return replace(
            self.state, library=library, attention=attention.changed(library, library, weights)
        )

    def with_new_clients(self, step: int, replies: dict[int, Reply]) -> MixtureState:
        """Compute each new client's weights on the last models of the training clients."""
        new = self.models_in(replies)
        attention = self.state.attention.with_members(new)
        givers = self.state.library.keys() & self.round.trained
        library = {n: model for n, model in self.state.library.items() if n in givers}
        for n, model in new.items():
            weights = self.weights_among({**library, n: model})
            attention = attention.changed([n], [*library, n], weights[-1:])
        return replace(self.state, library=self.library_with(new), attention=attention)

    def model_for(self, partition_id: int) -> Model:
        """Return the client's mixture, or the initial model before its first reply."""
        library = self.state.library
        if partition_id not in library:
            return self.state.model
        (weights,) = self.state.attention.at([partition_id], library)
        return AVERAGES[self.plan.mixing](list(library.values()), weights)

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send the client its mixture, and the extra parts."""
        return {**self.mixture_sent_to(partition_id), **self.extra_parts(partition_id)}

    def sent_to(self, reply: Reply) -> Arrays:
        """Return the mixture from which the client started."""
        return self.mixture_sent_to(reply.partition_id)

    def mixture_sent_to(self, partition_id: int) -> Arrays:
        """Return the model that one client receives for training, computed once a round."""
        return self.round.once(partition_id, lambda: self.model_for(partition_id))

    def results(self) -> Results:
        """Return the weights of the mixtures."""
        return Results(matrices=self.state.attention.named(self.matrix_name))
