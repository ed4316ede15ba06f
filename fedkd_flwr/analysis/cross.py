"""Cross-client evaluation: accuracy of each client's model on every client's test data.

It shows whose model would help whom. The coefficients of a method say how much a client learns
from each other client. Their rank correlation with the accuracies says whether clients learn from
those whose models suit them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedkd_flwr.analysis.client_models import distilled_clients, models_of, plan_of_data
from fedkd_flwr.analysis.columns import MISSING
from fedkd_flwr.config import ConfigError
from fedkd_flwr.data.clients import load_client
from fedkd_flwr.runs import Run, load_run, recorded_config
from fedkd_flwr.training.loop import computing_in, evaluate


@dataclass(frozen=True, eq=False)
class Cross:
    """Result of a cross-client evaluation.

    Attributes
    ----------
    run : Run
        The evaluated run.
    accuracies : ndarray
        Shape (N, N): row i, column j is the accuracy of client i's model on client j's test split.
    coefficients : dict of str to ndarray
        Matrices of receivers (rows) and givers (columns) after the last round, shape (N, N), by
        name; empty for a method without coefficients.
    new_clients : list of int
        Partition-ids of the clients that joined after the training.
    distilled : list of int
        Partition-ids of the clients whose model is the one after the last distillation.
    """

    run: Run
    accuracies: NDArray[np.float64]
    coefficients: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    new_clients: list[int] = field(default_factory=list)
    distilled: list[int] = field(default_factory=list)

    @property
    def own(self) -> float:
        """Mean accuracy of the models on their own clients' test data."""
        return float(self.accuracies.diagonal().mean())

    @property
    def others(self) -> float:
        """Mean accuracy of the models on other clients' test data."""
        is_other = ~np.eye(len(self.accuracies), dtype=bool)
        return float(self.accuracies[is_other].mean())

    def rank_correlations(self, name: str) -> NDArray[np.float64]:
        """Return the rank correlation of coefficients and accuracies, by receiver, shape (N,).

        It is Spearman's, between a receiver's coefficients for the other clients and the accuracies
        of their models on the receiver's test data. NaN if either is constant, if there are fewer
        than two other clients, and for clients that joined after the training, which have no
        coefficients.
        """
        taken, useful = (
            pd.DataFrame(matrix)
            .mask(np.eye(len(matrix), dtype=bool))
            .drop(index=self.new_clients, columns=self.new_clients)
            for matrix in (self.coefficients[name], self.accuracies.T)
        )
        with np.errstate(divide="ignore", invalid="ignore"):  # where one of them is constant
            found = taken.rank(axis=1).corrwith(useful.rank(axis=1), axis=1)
        return np.asarray(found.reindex(range(len(self.accuracies))), dtype=np.float64)

    def known_correlations(self, name: str) -> NDArray[np.float64]:
        """Return the `rank_correlations` that are defined."""
        correlations = self.rank_correlations(name)
        return correlations[~np.isnan(correlations)]

    def sentence(self, name: str) -> str:
        """Summarize the rank correlations of one of the `coefficients` in a sentence."""
        known = self.known_correlations(name)
        if len(self.accuracies) - len(self.new_clients) < 3:
            return f"{name}: there is at most one other client, so there is no rank correlation."
        if not len(known):
            return (
                f"{name}: all weights or all accuracies are equal, so there is no rank correlation."
            )
        return (
            f"{name}: rank correlation with the other models' accuracy on a client's test data is "
            f"{known.mean():+.2f} on average, above zero for {int((known > 0).sum())} of "
            f"{len(known)} clients."
        )

    def by_client(self) -> pd.DataFrame:
        """Return one row per client: accuracy of its own model and of the best other model."""
        others = self.accuracies.copy()
        np.fill_diagonal(others, -1)
        best = others.argmax(axis=0)
        clients = np.arange(len(others))
        return pd.DataFrame(
            {
                "client": clients,
                "own model": self.accuracies.diagonal(),
                "best other": best,
                "its accuracy": self.accuracies[best, clients],
                **{
                    f"{name}: rank correlation": self.rank_correlations(name)
                    for name in self.coefficients
                },
            }
        )

    def rendered(self) -> pd.DataFrame:
        """Return `by_client` as text, accuracies in percent."""
        numbers = self.by_client()
        layouts = {"client": "d", "own model": ".1%", "best other": "d", "its accuracy": ".1%"}
        return pd.DataFrame(
            {
                name: [
                    MISSING if math.isnan(value) else format(value, layouts.get(str(name), "+.2f"))
                    for value in column
                ]
                for name, column in numbers.items()
            }
        )


def cross(
    run: Run | str | Path, models_dir: str | Path = "", *, allow_code: str | Iterable[str] = ()
) -> Cross:
    """Evaluate each client's model on every client's test data.

    Parameters
    ----------
    run : Run, str or Path
        A finished run.
    models_dir : str or Path, optional
        Folder of exported models; by default the ``models-dir`` of the run. If the run has none,
        the models are read from the stored state of the clients. This works for methods whose
        clients keep the model that is evaluated.
    allow_code : str or iterable of str
        Code that the run's config may name, see `fedkd_flwr.load_run`.

    Raises
    ------
    ConfigError, DataError, RunDirectoryError
        If there are no models, or this machine does not have the data.

    Examples
    --------
    >>> fedkd_flwr.cross("runs/first").accuracies.shape
    (3, 3)
    """
    stored = run if isinstance(run, Run) else load_run(run, allow_code)
    configuration = recorded_config(stored)
    plan = plan_of_data(stored, configuration)
    if plan.num_clients < 2:
        raise ConfigError(
            f"{stored.path.name} has only one client; cross evaluation needs at least two."
        )
    parts = [load_client(plan, n) for n in range(plan.num_clients)]
    accuracies = np.full((plan.num_clients, plan.num_clients), math.nan)
    with computing_in(configuration.run.training.precision, plan.device):
        for n, model in enumerate(models_of(stored, configuration, str(models_dir))):
            model.to(plan.device)
            for other, data in enumerate(parts):
                result = evaluate(model, data.test_images, data.test_labels)
                accuracies[n, other] = result.correct / result.total
    square = {
        name: matrices[-1].astype(np.float64)
        for name, matrices in stored.matrices.items()
        if matrices.shape[1:] == accuracies.shape
    }
    distilled = distilled_clients(configuration, str(models_dir))
    return Cross(stored, accuracies, square, configuration.run.plan.new_client_ids, distilled)
