"""How a client takes part in a run: what all its messages have in common, read once."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from fedkd_flwr.clients.node import Node, node_split, read_node
from fedkd_flwr.clients.policy import NodePolicy, has_noise
from fedkd_flwr.clients.safeguard import LOCAL, run_of_private_model
from fedkd_flwr.config import Configuration, RunConfig
from fedkd_flwr.data.clients import client_indices
from fedkd_flwr.data.settings import DataPlan
from fedkd_flwr.models.estimators import names_estimator
from fedkd_flwr.models.genotype import SupernetSettings
from fedkd_flwr.models.registry import assign_models
from fedkd_flwr.models.settings import ModelSettings
from strategies.core.method_record import MethodRecord
from strategies.core.plan import Settings


@dataclass(frozen=True, eq=False)
class Participation:
    """A client of a run: the run config, the settings of its method, and its node."""

    run: RunConfig
    settings: Settings
    node: Node

    @cached_property
    def record(self) -> MethodRecord:
        """What the method declares."""
        return self.run.method.record

    @cached_property
    def device(self) -> str:
        """Where model and data are."""
        return self.run.torch_device

    @cached_property
    def has_noise(self) -> bool:
        """Whether what leaves the client has noise."""
        return has_noise(self.run, self.settings)

    @cached_property
    def data_plan(self) -> DataPlan:
        """What the data of the run's clients depend on."""
        return self.run.data_plan.at_node(self.node.data_path)

    @cached_property
    def model_name(self) -> str:
        """The architecture: the node's choice if it has one, else the run's assignment."""
        if self.node.model:
            return self.node.model
        return assigned_models(self.run.models, self.data_plan)[self.node.partition_id]

    @cached_property
    def search_space(self) -> SupernetSettings:
        """The supernet of ``darts``, and the size of ``darts-fixed``."""
        return self.run.models.search_space

    @cached_property
    def is_estimator(self) -> bool:
        """Whether the model is an estimator, not a network."""
        return names_estimator(self.model_name)

    @cached_property
    def private(self) -> "Participation | None":
        """That of the safeguard's private model, if the run asks for one."""
        if not self.run.plan.safeguard.is_on or self.run.strategy == LOCAL:
            return None
        return Participation(run_of_private_model(self.run), Settings(), self.node)

    @cached_property
    def client(self) -> type[Any]:
        """The class of the method's client."""
        method = self.run.method
        return method.estimator_client if self.is_estimator else method.client


def participation(
    configuration: Configuration,
    policy: NodePolicy,
    node_config: Mapping[str, Any],
    run_config: Mapping[str, Any],
) -> Participation:
    """Return how a node takes part in a run that its policy allows; `run_config` is the flat one.

    Raises `NodeConfigError` or `PolicyError`.
    """
    if not policy.trust_server:  # Its operator may revoke the approval of a run at any time.
        policy.check_run(configuration, run_config)
    given = tuple((key, value, type(value)) for key, value in node_config.items())
    return _participation(SameObject(configuration), given, policy)


class SameObject:
    """An object as the key of a cache, compared by identity: nobody changes it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


@lru_cache(maxsize=1024)
def _participation(
    same: SameObject, node_config: tuple[tuple[str, Any, type], ...], policy: NodePolicy
) -> Participation:
    """Read once for each client of a process, not at each of its messages."""
    configuration: Configuration = same.value
    run = configuration.run
    if policy.trust_server:
        policy.check_run(configuration, {})
    node = read_node({key: value for key, value, _ in node_config}, run)
    data = node_split(run.data, node.data_path, policy)
    own_run = run if data is run.data else run.model_copy(update={"data": data})
    return Participation(own_run, configuration.settings, node)


@lru_cache(maxsize=2)
def assigned_models(models: ModelSettings, data: DataPlan) -> list[str]:
    """Return the architecture of every client of a run, by partition-id."""
    sizes: list[int] = []
    if models.model_assignment == "by-size":
        sizes = [len(indices) for indices in client_indices(data)]
    return assign_models(models.models, models.model_assignment, data.num_clients, sizes, data.seed)
