"""Each client's model on every client's test data: who could help whom, and who is said to.

A matrix of coefficients says how much a client takes from each other. Row by row it is held
against how well the others' models do on the client's own test data.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from flwr.app import Context, RecordDict
from numpy.typing import NDArray
from safetensors import SafetensorError
from scipy.stats import spearmanr
from torch import nn

from fedkd_flwr.analysis.rendering import MISSING
from fedkd_flwr.client_app import build_client
from fedkd_flwr.clients import state_dir
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.data.clients import load_client
from fedkd_flwr.export import load_model
from fedkd_flwr.files import write_text
from fedkd_flwr.models.common import Shape
from fedkd_flwr.models.own import SIGNATURE
from fedkd_flwr.own import find_callable, is_own
from fedkd_flwr.runs import Run, RunDirectoryError, load_run, recorded_config
from fedkd_flwr.training.jobs import complete
from fedkd_flwr.training.loop import computing_in, evaluate

FORMATS = (".csv", ".json")
"""Endings of the files that hold a result."""


@dataclass(frozen=True, eq=False)
class Cross:
    """Every model on everybody's test data.

    Attributes
    ----------
    run : Run
        Whose models they are.
    accuracies : ndarray
        Shape (N, N): row i, column j is the accuracy of client i's model on client j's test split.
    coefficients : dict of str to ndarray
        The run's matrices of receivers and givers after the last round, shape (N, N), by name;
        empty for a method that has none.
    new_clients : list of int
        Partition-ids of those that came after the training.
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
        """Return how well coefficients point at those whose models do well for a client.

        Parameters
        ----------
        name : str
            One of the `coefficients`.

        Returns
        -------
        ndarray
            Shape (N,), by receiver: Spearman's rank correlation between what it takes from each
            other client and the accuracy of that client's model on its own test data. NaN where
            one of both is the same for all others, or there are fewer than two, and for clients
            that came after the training, of which no coefficient speaks.
        """
        trained = self._trained
        among = np.ix_(trained, trained)
        taken = _others(self.coefficients[name][among])
        useful = _others(self.accuracies.T[among])
        correlations = np.full(len(self.accuracies), math.nan)
        correlations[trained] = list(map(_rank_correlation, taken, useful))
        return correlations

    @property
    def _trained(self) -> NDArray[np.intp]:
        """Partition-ids of the clients that took part in the training."""
        return np.setdiff1d(np.arange(len(self.accuracies)), self.new_clients)

    def sentence(self, name: str) -> str:
        """Say whether a matrix of `coefficients` points at who helps."""
        known = self.rank_correlations(name)
        known = known[~np.isnan(known)]
        if len(self._trained) < 3:
            return f"{name}: there is one other client at most, so it cannot point at the best."
        if not len(known):
            return f"{name}: the same for all others, so it points at nobody."
        return (
            f"{name}: rank correlation with the others' accuracy on a client's test data is "
            f"{known.mean():+.2f} on average, above zero for {int((known > 0).sum())} of "
            f"{len(known)} clients."
        )

    def by_client(self) -> pd.DataFrame:
        """Return one row a client: its own model, and the best of the others on its test data."""
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
        """Return the accuracies with one row a model and one column a client's test data."""
        frame = pd.DataFrame(self.accuracies)
        return frame.rename_axis(index="model of", columns="test data of")

    def save(self, path: str | Path) -> Path:
        """Write the result.

        Parameters
        ----------
        path : str or Path
            A ``.csv`` file gets the accuracies, a ``.json`` file coefficients and correlations
            too.

        Raises
        ------
        ConfigError
            If the file has another ending.
        RunDirectoryError
            If it cannot be written.
        """
        file = Path(path).expanduser()
        require_format(file)
        text = self.to_frame().to_csv() if file.suffix == ".csv" else self.to_json()
        try:
            write_text(file, text)
        except OSError as error:
            raise RunDirectoryError(f"{file} cannot be written: {error.strerror}.") from None
        return file

    def to_json(self) -> str:
        """Return accuracies, coefficients and rank correlations; null where there is none."""
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
    """Refuse a file whose ending says nothing that can be written.

    Raises
    ------
    ConfigError
        If it is none of `FORMATS`.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(f"{path} ends in none of {', '.join(FORMATS)}.")


def cross(run: Run | str | Path, models_dir: str | Path = "") -> Cross:
    """Evaluate each client's model on every client's test data.

    Parameters
    ----------
    run : Run, str or Path
        A finished run.
    models_dir : str or Path, optional
        Where its clients exported their models; the run's own ``models-dir`` if left out. Without
        one the models are taken from what the clients remember of the run, which is possible
        where a client is evaluated with the model that it keeps.

    Raises
    ------
    ConfigError, DataError, RunDirectoryError
        If neither is there, or this machine does not have the data; in one sentence.
    """
    stored = run if isinstance(run, Run) else load_run(run)
    configuration = read_config(recorded_config(stored))
    plan = configuration.run.data_plan
    if plan.num_clients < 2:
        raise ConfigError(f"{stored.path.name} has one client, and nobody to hold it against.")
    parts = [load_client(plan, n) for n in range(plan.num_clients)]
    accuracies = np.full((plan.num_clients, plan.num_clients), math.nan)
    with computing_in(configuration.run.training.precision, plan.device):
        for n, model in enumerate(_models(stored, str(models_dir))):
            model.to(plan.device)
            for other, data in enumerate(parts):
                result = evaluate(model, data.test_images, data.test_labels)
                accuracies[n, other] = result.correct / result.total
    square = {
        name: matrices[-1].astype(np.float64)
        for name, matrices in stored.matrices.items()
        if matrices.shape[1:] == accuracies.shape
    }
    return Cross(stored, accuracies, square, configuration.run.plan.newcomers)


def _models(run: Run, models_dir: str) -> Iterator[nn.Module]:
    """Yield the clients' models by partition-id, as files or from the clients' memory.

    A model is good until the next is asked for.
    """
    config = recorded_config(run)
    folder = models_dir or str(config["models-dir"])
    if folder:
        files = [Path(folder).expanduser() / f"{n}.safetensors" for n in range(_clients(run))]
        yield from (_exported(file, run) for file in files)
        return
    yield from _remembered(run)


def _exported(file: Path, run: Run) -> nn.Module:
    """Read a model after making sure that it is of the run."""
    try:
        card = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        model = load_model(file, _own_builder(str(card["model"]), run))
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise RunDirectoryError(f"{file} holds no exported model ({error}).") from None
    of_model = {name: card.get(name) for name in ("strategy", "dataset", "partition", "seed")}
    of_run = {name: run.config.get(name) for name in of_model}
    if of_model != of_run:
        raise RunDirectoryError(
            f"{file} is of another run ({of_model}) than {run.path.name} ({of_run}); name the "
            "folder of its models with --models-dir."
        )
    return model


def _own_builder(name: str, run: Run) -> Callable[[Shape, int], nn.Module] | None:
    """Return what builds a model of the user's own, if the run itself names it.

    A file of a model may come from anybody, and imports nothing by itself.
    """
    if not is_own(name) or name not in read_config(recorded_config(run)).run.models.models:
        return None
    builder: Callable[[Shape, int], nn.Module] = find_callable(name, SIGNATURE)
    return builder


def _remembered(run: Run) -> Iterator[nn.Module]:
    """Yield the models that clients keep, in the state in which they were evaluated."""
    configuration = read_config({**recorded_config(run), "models-dir": ""})
    strategy = configuration.run.method.strategy
    rounds = len(run.round_rows)
    export = "do the run with models-dir=FOLDER (a sweep with --save-models)"
    for n in range(_clients(run)):
        context = Context(0, 0, {"partition-id": n}, RecordDict(), configuration.flat())
        client = build_client(context)
        if not (strategy.evaluates_trained_model and client.keeps_model):
            raise RunDirectoryError(
                f"{run.path.name} has no exported models, and what clients of "
                f"{configuration.run.strategy} are evaluated with is not in their memory; {export}."
            )
        folder = client.node.memory_folder(str(run.description.get("id", "")))
        if folder is None or not state_dir.load_context(context, folder, rounds + 1):
            raise RunDirectoryError(
                f"{run.path.name} has neither exported models nor client {n}'s memory; {export}."
            )
        with client.seeded_evaluation(rounds):
            complete(client.count_answers({}, rounds))
        yield client.model
        client.close()


def _clients(run: Run) -> int:
    return int(run.config["num-clients"])


def _others(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a matrix without its diagonal, shape (N, N - 1)."""
    clients = len(matrix)
    return matrix[~np.eye(clients, dtype=bool)].reshape(clients, -1)


def _rank_correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(spearmanr(first, second).statistic)
