"""Personalize a model for a client that joins after the training of PersFL.

See Divi et al. 2021, section 6. The new client needs only its own data and the global models that
the run stored. It selects its teacher among these models and distills from it, with the same code
as a client that took part in the training.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import UserConfig
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import nn

from fedkd_flwr.client_app import build_client
from fedkd_flwr.clients.base import Arrays
from fedkd_flwr.clients.persfl import PersFLClient
from fedkd_flwr.clients.policy import TRUSTED_NODE
from fedkd_flwr.clients.request import Request
from fedkd_flwr.config import ConfigError, Configuration, read_config
from fedkd_flwr.memory import InProcessContext, round_of
from fedkd_flwr.runs import Run, RunDirectoryError, load_run, names_of_code, recorded_config
from fedkd_flwr.runs.writing import global_models
from strategies.core.settings_groups import kebab_case
from strategies.persfl import PERSONALIZE


@dataclass(frozen=True, eq=False)
class PersonalizedClient:
    """Result of `personalize`: a new client and the accuracy of its model.

    Attributes
    ----------
    accuracy : float
        Accuracy of the personalized model on the client's test split.
    imitation, temperature : float
        lambda and T of the selected pair.
    teacher_round : int
        Round of the global model that became the teacher.
    teacher_accuracy, global_accuracy : float
        Accuracy of the teacher, and of the last global model, on the same test split.
    client : PersFLClient
        The client, with its data and model.
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
        """Write the model in the format of ``models-dir``; `fedkd_flwr.load_model` reads it.

        Parameters
        ----------
        folder : str or Path
            Gets ``<partition-id>.safetensors`` and its model card; created if missing.

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
    *,
    group_column: str = "",
    group_pattern: str = "",
    allow_code: str | Iterable[str] = (),
    **settings: Any,
) -> PersonalizedClient:
    """Personalize for a client that joins after the training of PersFL (section 6).

    Parameters
    ----------
    run : Run, str or Path
        The run directory of `persfl` or `persfl-gd`, with its stored global models.
    partition_id : int, optional
        The client of the run's partition whose data is used, whether or not it took part in the
        training. With `data_path` it only sets the random seed; 0 by default.
    data_path : str or Path, optional
        Image folder or Parquet file with the new client's data, instead of a partition.
    group_column, group_pattern : str, optional
        Which samples of `data_path` belong to one patient, as in a node's config. One of both.
    allow_code : str or iterable of str
        Code that the run's config may name, see `fedkd_flwr.load_run`.
    **settings
        Settings that replace those of the run, with underscores for dashes. Write names with
        dots in a dictionary: ``**{"persfl.imitation": "0,0.5"}``.

    Returns
    -------
    PersonalizedClient
        The personalized model and its accuracy.

    Raises
    ------
    ConfigError, DataError, RunDirectoryError
        If a setting, the data or the run is not valid; raised before the training.
    """
    stored = run if isinstance(run, Run) else load_run(run, allow_code)
    changes = {kebab_case(name): value for name, value in settings.items()}
    configuration = recorded_config(stored, names_of_code(changes))
    if changes:
        configuration = read_config({**configuration.flat(), **changes})
    client = _new_client(configuration, partition_id, str(data_path), group_column, group_pattern)
    files = global_models(stored.path)
    if not files:
        raise RunDirectoryError(f"{stored.path} has no stored global models.")
    *earlier, last = files
    for file in earlier:
        client.receive_model(_read(file, client))
        client.consider_teacher(round_of(file))
    # The same messages as for a client that took part: one for stage 2, one for evaluation.
    arrays, rounds = _read(last, client), round_of(last)
    client.serve(Request(arrays, rounds, PERSONALIZE))
    metrics = client.serve_evaluation(Request({}, rounds, trained_rounds=rounds)).metrics
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
    configuration: Configuration,
    partition_id: int | None,
    data_path: str,
    group_column: str,
    group_pattern: str,
) -> PersFLClient:
    """Build a client that does not read the stored state of the run's clients."""
    if partition_id is None and not data_path:
        raise ConfigError(
            "A new client needs data: give a partition (--partition) or a data path (--data-path)."
        )
    num_clients = configuration.run.plan.num_clients
    if not 0 <= (partition_id or 0) < num_clients:
        raise ConfigError(f"The run has no partition {partition_id}, only 0 to {num_clients - 1}.")
    node_config: UserConfig = {
        **TRUSTED_NODE,
        "partition-id": partition_id or 0,
        "data-path": data_path,
        "group-column": group_column,
        "group-pattern": group_pattern,
        "model": configuration.run.models.models[0],
    }
    client = build_client(InProcessContext(configuration.with_run(state_dir=""), 0, node_config))
    if not isinstance(client, PersFLClient):
        strategy = configuration.run.strategy
        raise ConfigError(
            f"Only runs of persfl and persfl-gd can be personalized; this is a run of {strategy}."
        )
    return client


def _read(file: Path, client: PersFLClient) -> Arrays:
    """Read a global model and check that it fits the client's model."""
    try:
        arrays = load_file(file)
    except (OSError, SafetensorError) as error:
        raise RunDirectoryError(f"{file} cannot be read: {error}.") from None
    expected = {name: value.shape for name, value in client.model_arrays().items()}
    if {name: value.shape for name, value in arrays.items()} != expected:
        raise ConfigError(
            f"{file} does not fit the model {client.model_name}; use the same models, dataset and "
            "supernet settings as the run."
        )
    return arrays
