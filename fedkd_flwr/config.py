"""The run config: the only reader of its keys, typed and validated once.

A run config is Flower's: flat names to numbers, words and booleans, in kebab case, with a
table for each method (``kt-pfl.rho``). `read_config` turns it into a `RunConfig` or refuses
it in one sentence, before any client works.
"""

import difflib
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from fedkd_flwr.data import DATASETS, PARTITIONS, DataSettings
from fedkd_flwr.data.clients import read_split
from fedkd_flwr.methods import METHODS, Method
from fedkd_flwr.models import ASSIGNMENTS, MODELS
from fedkd_flwr.models.darts import (
    OPERATIONS,
    PUBLISHED_GENOTYPE,
    Genotype,
    SearchSpace,
    SupernetSettings,
)
from strategies.base import RunPlan, Settings, kebab_case

Model = TypeVar("Model", bound=BaseModel)

Scalar = bool | int | float | str
"""The values a Flower run config can hold."""


class ConfigError(ValueError):
    """A run config that cannot be used; the message is one sentence for the user."""


ALLOWED_NAMES: dict[str, Collection[str]] = {
    "strategy": METHODS,
    "dataset": DATASETS,
    "partition": PARTITIONS,
    "public_dataset": ["held-out", "none", *DATASETS],
    "model_assignment": ASSIGNMENTS,
}
"""Fields of a run config that hold one of some names."""


class RunConfig(BaseModel):
    """A validated run config, without the methods' tables.

    Attributes
    ----------
    strategy : str
        Name of the method, a key of `fedkd_flwr.methods.METHODS`.
    dataset : str
        Name of the private data set.
    data_root : str
        Folder with Parquet data sets by hub id; empty for the Hugging Face hub.
    max_samples : int
        Use no more than that many samples of the data set, 0 for all.
    partition : str
        How the data is dealt out to clients.
    alpha : float
        Concentration of the `dirichlet` partition.
    classes_per_client : int
        Classes of each client in the `k-classes` partitions.
    groups : int
        Groups of clients in `k-classes-grouped`.
    samples_per_class : int
        Samples of each class a client holds where the partition fixes it; 0 for the paper's.
    minimum_size : int
        Fewest samples of a client in `dirichlet` and `lognormal-two-classes`.
    client_split : str
        Percentages train/validation/test inside each client.
    public_dataset : str
        ``held-out`` (an unlabeled part of the data set), ``none``, or another data set.
    held_out_size : int
        Samples held out for the public set.
    public_hash : str
        Hash that every client's public set must have; empty for the one most clients have.
    public_size : int
        P, public samples used in a round.
    models : tuple of str
        Architectures, separated by commas.
    model_assignment : str
        How clients get one of them.
    supernet_channels, supernet_cells, supernet_nodes, supernet_stem_stride : int
        Size of ``darts`` and ``darts-fixed``.
    supernet_operations : tuple of str
        Candidate operations of ``darts``, separated by commas; empty for all eight.
    genotype : str
        JSON of the cells of ``darts-fixed``; empty for those that DARTS published.
    num_clients : int
        N.
    num_server_rounds : int
        Communication rounds.
    fraction_train : float
        Share of the clients sampled in a round.
    min_replies : int
        A round with fewer valid replies stops the run.
    evaluate_every : int
        Evaluate every that many rounds, and after the last.
    local_epochs : int
        E, epochs on private data in a round.
    local_iterations : int
        tau, random private batches in a round in place of epochs; 0 for epochs.
    batch_size : int
        Batch size on private data.
    learning_rate, momentum, weight_decay : float
        Of stochastic gradient descent on private data.
    seed : int
        Seed of every draw.
    device : str
        ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
    torch_threads : int
        Threads of PyTorch in each process, 0 for its own choice.
    output_dir : str
        The run directory; empty for a new one under the home folder.
    state_dir : str
        Folder in which clients keep their memory besides the context; empty for none. A
        node's own config goes before.
    models_dir : str
        Folder to which clients export their personalized models after the last round; empty
        for none. A node's own config goes before.
    resume : bool
        Whether to continue the run in `output_dir`.
    connect_timeout, round_timeout : float
        Seconds to wait for clients to connect, and for the replies of a round.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=kebab_case,
        populate_by_name=True,
        allow_inf_nan=False,
    )

    strategy: str = "kt-pfl"
    dataset: str = "digits"
    data_root: str = ""
    max_samples: int = Field(default=0, ge=0)
    partition: str = "k-classes"
    alpha: float = Field(default=0.5, gt=0)
    classes_per_client: int = Field(default=4, ge=1)
    groups: int = Field(default=3, ge=1)
    samples_per_class: int = Field(default=0, ge=0)
    minimum_size: int = Field(default=20, ge=1)
    client_split: str = "75/0/25"
    public_dataset: str = "held-out"
    held_out_size: int = Field(default=200, ge=0)
    public_hash: str = ""
    public_size: int = Field(default=200, ge=0)
    models: tuple[str, ...] = ("lenet", "alexnet", "resnet18", "shufflenetv2")
    model_assignment: str = "cyclic"
    supernet_channels: int = 16
    supernet_cells: int = 8
    supernet_nodes: int = 4
    supernet_stem_stride: int = 1
    supernet_operations: tuple[str, ...] = ()
    genotype: str = ""
    num_clients: int = Field(default=8, ge=1)
    num_server_rounds: int = Field(default=6, ge=1)
    fraction_train: float = Field(default=1.0, gt=0, le=1)
    min_replies: int = Field(default=1, ge=1)
    evaluate_every: int = Field(default=1, ge=1)
    local_epochs: int = Field(default=2, ge=1)
    local_iterations: int = Field(default=0, ge=0)
    batch_size: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=0.02, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    seed: int = Field(default=0, ge=0)
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    torch_threads: int = Field(default=0, ge=0)
    output_dir: str = ""
    state_dir: str = ""
    models_dir: str = ""
    resume: bool = False
    connect_timeout: float = Field(default=60.0, gt=0)
    round_timeout: float = Field(default=3600.0, gt=0)

    @field_validator("models", "supernet_operations", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(",") if name.strip())
        return value

    @field_validator(*ALLOWED_NAMES)
    @classmethod
    def _known_name(cls, value: str, info: ValidationInfo) -> str:
        return _one_of(value, ALLOWED_NAMES[str(info.field_name)])

    @field_validator("models")
    @classmethod
    def _known_models(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError(f"names no model; allowed are {', '.join(MODELS)}")
        return tuple(_one_of(name, MODELS) for name in value)

    @property
    def method(self) -> Method:
        """The method that `strategy` names."""
        return METHODS[self.strategy]

    @property
    def num_classes(self) -> int:
        """K, the number of classes of the data set."""
        return DATASETS[self.dataset].classes

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        return DATASETS[self.dataset].shape

    @property
    def search_space(self) -> SearchSpace:
        """Size of the models ``darts`` and ``darts-fixed``.

        Raises
        ------
        ValueError
            If there is no such supernet or genotype.
        """
        settings = SupernetSettings(
            channels=self.supernet_channels,
            cells=self.supernet_cells,
            nodes=self.supernet_nodes,
            operations=self.supernet_operations or OPERATIONS,
            stem_stride=self.supernet_stem_stride,
        )
        genotype = Genotype.from_text(self.genotype) if self.genotype else PUBLISHED_GENOTYPE
        return SearchSpace(settings, genotype)

    @property
    def data_settings(self) -> DataSettings:
        """What the data depends on; clients of equal settings share one decoded copy."""
        needs_public_data = self.method.strategy.needs_public_data
        held_out = self.held_out_size if self.public_dataset == "held-out" else 0
        return DataSettings(
            dataset=self.dataset,
            data_root=self.data_root,
            partition=self.partition,
            alpha=self.alpha,
            classes_per_client=self.classes_per_client,
            groups=self.groups,
            samples_per_class=self.samples_per_class,
            minimum_size=self.minimum_size,
            client_split=self.client_split,
            # The held-out part leaves the pool whether or not a method uses it: all methods
            # are compared on the same private data.
            public_dataset=self.public_dataset
            if needs_public_data or self.public_dataset == "held-out"
            else "none",
            held_out_size=held_out,
            num_clients=self.num_clients,
            seed=self.seed,
            max_samples=self.max_samples,
            device=self.torch_device,
        )

    @property
    def torch_device(self) -> str:
        """The device that ``auto`` stands for on this machine."""
        if self.device != "auto":
            return self.device
        import torch  # deferred: reading a config should not load PyTorch

        return "cuda" if torch.cuda.is_available() else "cpu"

    def plan(self) -> RunPlan:
        """Return what the server knows of the run before it starts."""
        return RunPlan(
            num_clients=self.num_clients,
            num_rounds=self.num_server_rounds,
            num_classes=self.num_classes,
            public_size=self.public_size,
            fraction_train=self.fraction_train,
            min_replies=self.min_replies,
            evaluate_every=self.evaluate_every,
            seed=self.seed,
            public_hash=self.public_hash,
            connect_timeout=self.connect_timeout,
            round_timeout=self.round_timeout,
        )


class Configuration(BaseModel):
    """A whole run config: the common keys and every method's own.

    Attributes
    ----------
    run : RunConfig
        The common keys.
    tables : dict of str to Settings
        The methods' settings, by table name.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)
    run: RunConfig
    tables: dict[str, Any]

    @property
    def settings(self) -> Settings:
        """The settings of the method that this run uses."""
        settings_type = self.run.method.strategy.settings_type
        settings: Settings = self.tables.get(settings_type.table, settings_type())
        return settings

    def flat(self) -> dict[str, Scalar]:
        """Return the config as Flower's flat run config, complete and sorted by name."""
        values = self.run.model_dump(by_alias=True)
        for table, settings in self.tables.items():
            for key, value in settings.model_dump(by_alias=True).items():
                values[f"{table}.{key}"] = value
        return {name: _as_scalar(value) for name, value in sorted(values.items())}


def _as_scalar(value: Any) -> Scalar:
    """Write a list the way a run config holds it, separated by commas."""
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    scalar: Scalar = value
    return scalar


def _one_of(value: str, allowed: Collection[str]) -> str:
    if value in allowed:
        return value
    raise ValueError(f"is none of the allowed {', '.join(allowed)}")


def method_tables() -> dict[str, type[Settings]]:
    """Return the settings type of every table that some method reads."""
    types = (method.strategy.settings_type for method in METHODS.values())
    return {settings.table: settings for settings in types if settings.table}


def read_config(flat: Mapping[str, Any]) -> Configuration:
    """Validate a flat run config.

    Parameters
    ----------
    flat : mapping of str to bool, int, float or str
        Names as in ``[tool.flwr.app.config]``, tables joined by dots; what is left out has
        its default.

    Returns
    -------
    Configuration
        The validated config.

    Raises
    ------
    ConfigError
        On an unknown name, a value out of range or an impossible combination.
    """
    tables = method_tables()
    common = {name: value for name, value in flat.items() if "." not in name}
    own: dict[str, dict[str, Any]] = {table: {} for table in tables}
    for name, value in flat.items():
        table, dot, key = name.partition(".")
        if not dot:
            continue
        if table not in tables or key not in _keys_of(tables[table]):
            raise ConfigError(_unknown(name))
        own[table][key] = value
    for name in common:
        if name not in _keys_of(RunConfig):
            raise ConfigError(_unknown(name))
    configuration = Configuration(
        run=_validated(RunConfig, common, ""),
        tables={name: _validated(tables[name], own[name], f"{name}.") for name in tables},
    )
    _check_combinations(configuration)
    return configuration


def _keys_of(model: type[BaseModel]) -> list[str]:
    return [kebab_case(name) for name in model.model_fields]


def known_names() -> list[str]:
    """Return every name that a run config may hold."""
    own = [f"{table}.{key}" for table, kind in method_tables().items() for key in _keys_of(kind)]
    return [*_keys_of(RunConfig), *own]


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, known_names(), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "`fedkd list` shows the names."
    return f"The run config has no key {name}; {hint}"


def _validated(model: type[Model], values: dict[str, Any], prefix: str) -> Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = f"{prefix}{first['loc'][0]}"
        reason = first["msg"].removeprefix("Value error, ")
        reason = reason.replace("Input should be", "it should be")
        raise ConfigError(f"{name} = {first['input']!r}: {reason}.") from None


def _check_combinations(configuration: Configuration) -> None:
    """Refuse settings that are fine by themselves and impossible together."""
    run, strategy = configuration.run, configuration.run.method.strategy
    if strategy.needs_one_model and len(set(run.models)) > 1:
        raise ConfigError(
            f"{run.strategy} averages parameters and needs one architecture for all clients, and "
            f"models = {','.join(run.models)} names {len(set(run.models))}; set models to one."
        )
    if strategy.needs_public_data and (run.public_dataset == "none" or run.public_size < 1):
        raise ConfigError(
            f"{run.strategy} exchanges predictions on public samples; set public-dataset to "
            "held-out or a data set, and public-size to at least 1."
        )
    if strategy.needs_validation_data and not min(read_split(run.client_split)[1]):
        raise ConfigError(
            f"{run.strategy} needs validation data; set client-split to something like 60/20/20."
        )
    if run.resume and not run.output_dir:
        raise ConfigError("resume = true needs output-dir, the run directory to continue.")
    if run.min_replies > max(1, round(run.fraction_train * run.num_clients)):
        raise ConfigError(
            f"min-replies = {run.min_replies} is more than the clients sampled in a round "
            f"({max(1, round(run.fraction_train * run.num_clients))})."
        )
    try:
        strategy.check_plan(run.plan(), configuration.settings)
        _ = run.search_space
    except ValueError as error:
        raise ConfigError(str(error)) from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a preset: a TOML file with the keys that differ from the defaults.

    Raises
    ------
    ConfigError
        If there is no such file or it is no TOML.
    """
    if not path.is_file():
        raise ConfigError(f"There is no preset {path}.")
    try:
        return flatten(tomllib.loads(path.read_text()))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The preset {path} is no valid TOML: {error}.") from None


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Join the names of nested tables by dots."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def parse_assignment(text: str) -> tuple[str, Scalar]:
    """Read one ``KEY=VALUE``; a value that is no TOML value is taken as a word.

    Raises
    ------
    ConfigError
        If there is no ``=`` or no name before it.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"{text!r} is no setting; write KEY=VALUE, such as seed=1.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    return name, parsed if isinstance(parsed, bool | int | float | str) else value
