"""Cross-client evaluation: accuracy of each client's model on every client's test data.

It shows whose model would help whom. The coefficients of a method say how much a client learns
from each other client. Their rank correlation with the accuracies says whether clients learn from
those whose models suit them.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from safetensors import SafetensorError
from scipy.stats import spearmanr
from torch import nn

from fedkd_flwr.analysis.columns import MISSING
from fedkd_flwr.analysis.rendering import written_to
from fedkd_flwr.client_app import build_client
from fedkd_flwr.clients.policy import TRUSTED_NODE
from fedkd_flwr.config import ConfigError, Configuration
from fedkd_flwr.custom_objects.importing import find_callable, find_custom, is_custom
from fedkd_flwr.data.clients import load_client
from fedkd_flwr.export import load_model
from fedkd_flwr.files import write_text
from fedkd_flwr.memory import InProcessContext, MemoryFolder
from fedkd_flwr.models.custom_models import SIGNATURE
from fedkd_flwr.models.estimators import names_estimator
from fedkd_flwr.runs import Run, RunDirectoryError, load_run, recorded_config
from fedkd_flwr.training.loop import computing_in, evaluate

FORMATS = (".csv", ".json")
"""Suffixes of the files that a result can be written to."""


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
    """

    run: Run
    accuracies: NDArray[np.float64]
    coefficients: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    new_clients: list[int] = field(default_factory=list)

    @property
    def own(self) -> float:
        """Mean accuracy of the models on their own clients' test data."""
        return float(self.accuracies.diagonal().mean())

    @property
    def others(self) -> float:
        """Mean accuracy of the models on other clients' test data."""
        return float(_others(self.accuracies).mean())

    def rank_correlations(self, name: str) -> NDArray[np.float64]:
        """Return the rank correlation of coefficients and accuracies, by receiver.

        Parameters
        ----------
        name : str
            One of the `coefficients`.

        Returns
        -------
        ndarray
            Shape (N,). Spearman's rank correlation between a receiver's coefficients for the
            other clients and the accuracies of their models on the receiver's test data. NaN if
            either is constant, if there are fewer than two other clients, and for clients that
            joined after the training, which have no coefficients.
        """
        trained = self._trained
        among = np.ix_(trained, trained)
        taken = _others(self.coefficients[name][among])
        useful = _others(self.accuracies.T[among])
        correlations = np.full(len(self.accuracies), math.nan)
        correlations[trained] = list(map(_rank_correlation, taken, useful))
        return correlations

    def known_correlations(self, name: str) -> NDArray[np.float64]:
        """Return the `rank_correlations` that are defined."""
        correlations = self.rank_correlations(name)
        return correlations[~np.isnan(correlations)]

    @property
    def _trained(self) -> NDArray[np.intp]:
        """Partition-ids of the clients that took part in the training."""
        return np.setdiff1d(np.arange(len(self.accuracies)), self.new_clients)

    def sentence(self, name: str) -> str:
        """Summarize the rank correlations of one of the `coefficients` in a sentence."""
        known = self.known_correlations(name)
        if len(self._trained) < 3:
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

    def to_frame(self) -> pd.DataFrame:
        """Return the accuracies, one row per model and one column per client's test data."""
        frame = pd.DataFrame(self.accuracies)
        return frame.rename_axis(index="model of", columns="test data of")

    def save(self, path: str | Path) -> Path:
        """Write the result.

        Parameters
        ----------
        path : str or Path
            A ``.csv`` file gets the accuracies. A ``.json`` file also gets coefficients and
            rank correlations.

        Raises
        ------
        ConfigError
            If the file has another suffix.
        RunDirectoryError
            If the file cannot be written.
        """
        file = Path(path).expanduser()
        require_format(file)
        text = self.to_frame().to_csv() if file.suffix == ".csv" else self.to_json()
        with written_to(file, "The accuracies"):
            write_text(file, text)
        return file

    def to_json(self) -> str:
        """Return accuracies, coefficients and rank correlations; undefined values are null."""
        correlations = {name: self.rank_correlations(name) for name in self.coefficients}
        content = {
            "run": self.run.path.name,
            "accuracies": self.accuracies.tolist(),
            "coefficients": {name: m.tolist() for name, m in self.coefficients.items()},
            "rank_correlations": {
                name: [None if math.isnan(value) else value for value in values.tolist()]
                for name, values in correlations.items()
            },
        }
        return json.dumps(content, indent=1) + "\n"


def require_format(path: Path) -> None:
    """Check that a result can be written to a file with this suffix.

    Raises `ConfigError` if the suffix is not one of `FORMATS`.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(f"{path} must end in {' or '.join(FORMATS)}.")


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
    """
    stored = run if isinstance(run, Run) else load_run(run, allow_code)
    configuration = recorded_config(stored)
    plan = configuration.run.data_plan
    if plan.num_clients < 2:
        raise ConfigError(
            f"{stored.path.name} has only one client; cross evaluation needs at least two."
        )
    parts = [load_client(plan, n) for n in range(plan.num_clients)]
    accuracies = np.full((plan.num_clients, plan.num_clients), math.nan)
    with computing_in(configuration.run.training.precision, plan.device):
        for n, model in enumerate(_models(stored, configuration, str(models_dir))):
            model.to(plan.device)
            for other, data in enumerate(parts):
                result = evaluate(model, data.test_images, data.test_labels)
                accuracies[n, other] = result.correct / result.total
    square = {
        name: matrices[-1].astype(np.float64)
        for name, matrices in stored.matrices.items()
        if matrices.shape[1:] == accuracies.shape
    }
    return Cross(stored, accuracies, square, configuration.run.plan.new_client_ids)


def _models(run: Run, configuration: Configuration, models_dir: str) -> Iterator[nn.Module]:
    """Yield the clients' models by partition-id, from files or the clients' stored state.

    A model is valid until the next one is requested.
    """
    folder = models_dir or configuration.run.models_dir
    if not folder:
        yield from _models_from_state(run, configuration)
        return
    for n in range(configuration.run.plan.num_clients):
        yield _exported_model(Path(folder).expanduser() / f"{n}.safetensors", run, configuration)


def _exported_model(file: Path, run: Run, configuration: Configuration) -> nn.Module:
    """Read an exported model and check that it belongs to the run."""
    try:
        card = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        model = load_model(file, _custom_builders(card, configuration))
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise RunDirectoryError(f"{file} is not an exported model ({error}).") from None
    of_model = {name: card.get(name) for name in ("strategy", "dataset", "partition", "seed")}
    of_run = {name: run.config.get(name) for name in of_model}
    if of_model != of_run:
        raise RunDirectoryError(
            f"{file} is from another run ({of_model}) than {run.path.name} ({of_run}); give the "
            "folder of the run's models with --models-dir."
        )
    return model


def _custom_builders(card: Mapping[str, Any], configuration: Configuration) -> dict[str, Any]:
    """Return the builders of the custom models of a card, if the run's settings name them.

    A model file may come from an untrusted source, so its card alone must not import code.
    """
    named = {*configuration.run.models.models, getattr(configuration.settings, "shared_model", "")}
    return {
        name: find_custom(name) if names_estimator(name) else find_callable(name, SIGNATURE)
        for name in map(str, (card["model"], card.get("shared-model", "")))
        if is_custom(name) and name in named
    }


def _models_from_state(run: Run, configuration: Configuration) -> Iterator[nn.Module]:
    """Yield the models from the clients' stored state, as they were evaluated."""
    record = configuration.run.method.record
    rounds = len(run.round_rows)
    export = "run again with models-dir=FOLDER (a sweep with --save-models)"
    for n in range(configuration.run.plan.num_clients):
        client = build_client(
            InProcessContext(configuration, 0, {"partition-id": n, **TRUSTED_NODE})
        )
        if not (record.evaluates_trained_model and client.keeps_model):
            raise RunDirectoryError(
                f"{run.path.name} has no exported models, and clients of "
                f"{configuration.run.strategy} do not store the evaluated model; {export}."
            )
        session = client.session
        folder = session.node.memory_folder(run.run_id)
        memory = MemoryFolder(folder).read(rounds + 1) if folder else None
        if memory is None:
            raise RunDirectoryError(
                f"{run.path.name} has neither exported models nor stored state of client {n}; "
                f"{export}."
            )
        session.memory.replace(memory)
        yield session.evaluated_model(rounds)
        session.close()


def _others(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a matrix without its diagonal, shape (N, N - 1)."""
    clients = len(matrix)
    return matrix[~np.eye(clients, dtype=bool)].reshape(clients, -1)


def _rank_correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(spearmanr(first, second).statistic)
