"""A client that joins after the training of PersFL (Divi et al. 2021, §6).

It needs the stored global models of the run and its own data, and nobody else: it chooses its
teacher among the models and distils from it, with the steps of a client that took part.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import nn

from fedkd_flwr.client_app import build_client
from fedkd_flwr.clients.base import Arrays
from fedkd_flwr.clients.persfl import PersFLClient
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.runs import Run, RunDirectoryError, load_run
from strategies.core.slices import kebab_case
from strategies.persfl import PERSONALIZE


@dataclass(frozen=True, eq=False)
class PersonalizedClient:
    """What a newcomer ends up with.

    Attributes
    ----------
    accuracy : float
        Of the personalized model on the newcomer's test split.
    imitation, temperature : float
        lambda and T of the kept pair.
    teacher_round : int
        Round of the global model that became the teacher.
    teacher_accuracy, global_accuracy : float
        Of the teacher, and of the last global model, on the same test split.
    client : PersFLClient
        The newcomer itself, with its data and its model.
    """

    accuracy: float
    imitation: float
    temperature: float
    teacher_round: int
    teacher_accuracy: float
    global_accuracy: float
    client: PersFLClient = field(repr=False)

    @property
    def model(self) -> nn.Module:
        """The personalized model."""
        return self.client.model

    def save(self, folder: str | Path) -> Path:
        """Write the model as runs write theirs; `fedkd_flwr.export.load_model` reads it.

        Parameters
        ----------
        folder : str or Path
            Gets ``<partition-id>.safetensors`` and its card; made if missing.

        Returns
        -------
        Path
            The safetensors file.

        Raises
        ------
        RunDirectoryError
            If the folder cannot be written.
        """
        results = {name: value for name, value in vars(self).items() if name != "client"}
        try:
            return self.client.export_model(Path(folder).expanduser(), results)
        except (OSError, SafetensorError) as error:
            raise RunDirectoryError(f"The model cannot be written to {folder}: {error}") from None


def personalize(
    run: Run | str | Path,
    partition_id: int | None = None,
    data_path: str | Path = "",
    **settings: Any,
) -> PersonalizedClient:
    """Personalize for a client that joins after the training (§6).

    Parameters
    ----------
    run : Run, str or Path
        The run directory of `persfl` or `persfl-gd`, with its stored global models.
    partition_id : int, optional
        The share of the run's data that is the newcomer's, whether or not it took part. With
        `data_path` it only seeds the draws, 0 if left out.
    data_path : str or Path, optional
        The newcomer's own folder of images or Parquet file, in place of a share.
    **settings
        Run config values in place of the run's, with underscores for dashes; names with dots
        through a dictionary, ``**{"persfl.imitation": "0,0.5"}``.

    Returns
    -------
    PersonalizedClient
        The personalized model and its accuracy.

    Raises
    ------
    ConfigError, DataError, RunDirectoryError
        In one sentence, before anything is trained.
    """
    stored = run if isinstance(run, Run) else load_run(run)
    changes = {kebab_case(name): value for name, value in settings.items()}
    # What the run's own clients remember is none of the newcomer's business.
    client = _new_client({**stored.config, **changes, "state-dir": ""}, partition_id, data_path)
    *earlier, last = _global_models(stored)
    for file in earlier:
        client.receive_model(_read(file, client))
        client.consider_teacher(_round_of(file))
    # From here on all is as for a client that took part: stage 2 is one message, and another
    # leaves the model as it is evaluated.
    arrays, rounds = _read(last, client), _round_of(last)
    message = {"names": list(arrays), "server-round": rounds, "phase": PERSONALIZE}
    client.fit(list(arrays.values()), message)
    message = {"names": [], "server-round": rounds, "trained-rounds": rounds}
    _, _, metrics = client.evaluate([], message)
    return PersonalizedClient(
        accuracy=metrics["correct"] / metrics["total"],
        imitation=metrics["lambda"],
        temperature=metrics["temperature"],
        teacher_round=int(metrics["teacher-round"]),
        teacher_accuracy=metrics["teacher-accuracy"],
        global_accuracy=metrics["global-accuracy"],
        client=client,
    )


def _new_client(
    flat: Mapping[str, Any], partition_id: int | None, data_path: str | Path
) -> PersFLClient:
    """Build a client that remembers nothing."""
    configuration = read_config(flat)
    if partition_id is None and not data_path:
        raise ConfigError("A newcomer needs data: name a partition or a data path.")
    num_clients = configuration.run.plan.num_clients
    if not 0 <= (partition_id or 0) < num_clients:
        raise ConfigError(f"The run has no partition {partition_id}, only 0 to {num_clients - 1}.")
    context = Context(
        run_id=0,
        node_id=0,
        node_config={
            "partition-id": partition_id or 0,
            "data-path": str(data_path),
            "model": configuration.run.models.models[0],
        },
        state=RecordDict(),
        run_config=configuration.flat(),
    )
    client = build_client(context)
    if not isinstance(client, PersFLClient):
        strategy = configuration.run.strategy
        raise ConfigError(f"A newcomer personalizes by PersFL, and this is a run of {strategy}.")
    return client


def _global_models(run: Run) -> list[Path]:
    """Return the files of a run's global models in the order of their rounds."""
    files = sorted((run.path / "models").glob("global-*.safetensors"))
    if not files:
        raise RunDirectoryError(f"{run.path} holds no global models.")
    return files


def _round_of(file: Path) -> int:
    return int(file.stem.removeprefix("global-"))


def _read(file: Path, client: PersFLClient) -> Arrays:
    """Read a global model after making sure that the client's model can hold it."""
    try:
        arrays = load_file(file)
    except (OSError, SafetensorError) as error:
        raise RunDirectoryError(f"{file} cannot be read: {error}.") from None
    expected = {name: value.shape for name, value in client.model_arrays().items()}
    if {name: value.shape for name, value in arrays.items()} != expected:
        raise ConfigError(
            f"{file} does not fit the model {client.model_name}; leave models, dataset and "
            "supernet as they are in the run."
        )
    return arrays
