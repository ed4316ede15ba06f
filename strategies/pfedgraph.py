"""pFedGraph: clients are mixed by a graph that is inferred from their updates and their sizes.

With the updates ``d_i = w_i - w_0`` of the clients' models since the initial model and the shares p
of the clients' samples, row i of the graph minimizes

    alpha * ||a - p||² - Σ_j a_j cos(d_i, d_j)    over a on the simplex.

The server sends client i the mixture ``u_i = Σ_j a_ij w_j``. The client trains from it with
``lambda * cos(w, u_i)`` added to its loss.

Differences from the paper
--------------------------
- The paper's text was not at hand; this is the authors' code (its variant *approx*, in which u_i
  stands in the cosine on the clients, and not the mixture of normalized models). As there, cosines
  above 0.9 count as 1, and lambda is added: it pushes w away from the direction of u_i.
- The minimum is computed exactly: it is the projection of ``p + cos / (2 alpha)`` onto the simplex.
  The authors' code calls a solver.
- The cosines are of all parameters. The authors' code has those of the fully connected layers by
  default.
- Clients may be sampled; the graph is among the last models of all clients. In the authors' code it
  is among those of the round.
- Accuracy is that of the model after local training. The authors' code reports the test accuracy at
  the best validation accuracy, before or after training.
- The cosine is added from the second round of a client on, since it starts from the initial model.
- Batch-normalization statistics are mixed with the same weights.
- With ``mixing = "median"`` or ``"trimmed-mean"`` u_i is that of the models with these weights.
- A new client's weights are computed over the last models of the clients in training and its own.
"""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.declarations import BUFFERS
from strategies.core.method_record import Paper
from strategies.core.plan import Settings
from strategies.core.probabilities import project_onto_simplex
from strategies.core.settings_groups import ANY_ON_NODES, OnNodes, SearchRange
from strategies.parameters import MixtureStrategy, Model

EQUAL = 0.9  # cosine from which updates count as equal


class PFedGraphSettings(Settings):
    """Settings of pFedGraph, with the defaults of the authors' code."""

    table = "pfedgraph"
    size_weight: Annotated[float, SearchRange(0.1, 10.0, log=True), ANY_ON_NODES] = Field(
        default=0.8, gt=0
    )
    """alpha, how strongly the graph follows the clients' sizes instead of their similarities."""
    similarity_weight: Annotated[float, OnNodes(0, 10)] = Field(default=0.01, ge=0)
    """lambda of the cosine on the clients."""


def graph_rows(
    cosines: NDArray[np.float64], shares: NDArray[np.float64], size_weight: float
) -> NDArray[np.float64]:
    """Return the rows of the graph, (R, R), by cosines (R, R), shares p (R,) and alpha."""
    similar = np.where(cosines > EQUAL, 1.0, cosines)
    rows = shares + similar / (2 * size_weight)
    return project_onto_simplex(rows, np.ones(len(rows)))


def update_cosines(models: list[Model], start: Model) -> NDArray[np.float64]:
    """Return the cosines of R models' updates of parameters since a start, (R, R); 0 for none."""
    products = np.zeros((len(models), len(models)))
    for kind in start.keys() - {BUFFERS}:
        moved = np.stack([model[kind] - start[kind] for model in models]).astype(np.float64)
        products += moved @ moved.T
    norms = np.sqrt(np.diag(products))
    return products / np.maximum(np.outer(norms, norms), np.finfo(np.float64).tiny)


class PFedGraph(MixtureStrategy):
    """pFedGraph's server."""

    record = MixtureStrategy.record.derived(
        paper=Paper(
            authors="R. Ye, Z. Ni, F. Wu, S. Chen, Y. Wang",
            title="Personalized Federated Learning with Inferred Collaboration Graphs",
            venue="ICML",
            year=2023,
        ),
        settings_type=PFedGraphSettings,
        dp_sgd=True,
    )
    matrix_name = "graph"
    settings: PFedGraphSettings

    def weights_among(self, models: Mapping[int, Model]) -> NDArray[np.float64]:
        reported = {*self.round.trained, *self.round.new}
        joined = {n: model for n, model in models.items() if n in reported}
        sizes = self.weights_of(joined)
        cosines = update_cosines(list(joined.values()), self.state.model)
        places = [place for place, n in enumerate(models) if n in joined]
        graph = np.eye(len(models))
        graph[np.ix_(places, places)] = graph_rows(
            cosines, sizes / sizes.sum(), self.settings.size_weight
        )
        return graph
