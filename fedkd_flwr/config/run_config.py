"""The keys that all methods share, as groups that are declared beside the code that reads them.

Also the error of an invalid run config, and Flower's flat form: one level of names, scalar values.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from fedkd_flwr.data.registry import HELD_OUT, NO_PUBLIC_SET
from fedkd_flwr.data.settings import DataPlan, DataSettings
from fedkd_flwr.methods import Method, find_method
from fedkd_flwr.models.settings import ModelSettings
from fedkd_flwr.training.settings import DPSGDSettings, TrainingSettings
from strategies.core.method_record import Need
from strategies.core.plan import PlanSettings, RunPlan
from strategies.core.settings_groups import (
    ANY_ON_NODES,
    DEFAULT_ON_NODES,
    NO_EFFECT_ON_RESULTS,
    SettingsGroup,
    Words,
    fitting,
    kebab_case,
    some_of,
)


class ConfigError(ValueError):
    """An invalid run config; the message is one sentence for the user."""


Scalar = bool | int | float | str  # values of a Flower run config


def as_scalar(value: Any) -> Scalar:
    """Convert a list to text separated by commas; return other values unchanged."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables, with their names joined by dots; refuse a name that occurs twice."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        is_table = isinstance(value, Mapping)
        found = flatten(value, f"{prefix}{name}.") if is_table else {f"{prefix}{name}": value}
        if twice := sorted(flat.keys() & found.keys()):
            raise ConfigError(f"{twice[0]} is set twice, in a table and by its whole name.")
        flat |= found
    return flat


def in_kebab_case(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their names with dashes; refuse one in both spellings."""
    named: dict[str, Any] = {}
    for name, value in settings.items():
        if kebab_case(name) in named:
            raise ConfigError(f"{name} and {kebab_case(name)} are one setting, and both are set.")
        named[kebab_case(name)] = value
    return named


MOST_THREADS = 1024
"""Upper limit of threads: PyTorch crashes without a message when the machine cannot start them."""

Device = Annotated[str, fitting(r"auto|cpu|cuda(:\d+)?", "auto, cpu, cuda or cuda:N")]
"""A device of PyTorch as it is written in a run config."""

TRACKERS = ("tensorboard", "wandb", "mlflow")
"""Each is also the name of an extra, of a package, and of a folder in the run directory."""


class TrackerSettings(SettingsGroup):
    """Trackers of experiments."""

    tracker: Annotated[Words, AfterValidator(some_of(TRACKERS)), NO_EFFECT_ON_RESULTS] = ()
    """What the server writes the rounds to besides the run directory, some of ``tensorboard``,
    ``wandb`` and ``mlflow``, separated by commas; empty for none. Each is an extra of that name."""
    tracker_clients: Annotated[bool, NO_EFFECT_ON_RESULTS] = False
    """Whether trackers get each client's numbers too."""

    def require_installed(self) -> None:
        """Check that the trackers are installed here; a `ConfigError` says how to install one."""
        for name in self.tracker:
            found = find_spec(name)
            # A folder of that name, such as those of wandb, is found too, without an origin.
            if found is None or found.origin is None:
                raise ConfigError(
                    f"tracker = {name} is not installed where the server runs: "
                    f"`uv sync --extra {name}`, or `pip install 'fedkd-flwr[{name}]'`."
                )


class RunConfig(SettingsGroup):
    """A validated run config, without the methods' tables."""

    strategy: Annotated[str, ANY_ON_NODES] = "kt-pfl"
    """Name of the method, or a custom method as ``module:object``."""
    data: DataSettings = DataSettings()
    """Samples, partition and public set."""
    models: ModelSettings = ModelSettings()
    """Architectures and who gets which."""
    training: TrainingSettings = TrainingSettings()
    """Training on private data."""
    dp_sgd: DPSGDSettings = DPSGDSettings()
    """Differential privacy of that training."""
    plan: PlanSettings = PlanSettings()
    """Clients, rounds, sampling and seed."""
    trackers: TrackerSettings = TrackerSettings()
    """Trackers of experiments."""
    device: Annotated[Device, NO_EFFECT_ON_RESULTS] = "auto"
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N``. The server computes on the CPU if its machine
    lacks the device."""
    torch_threads: Annotated[int, NO_EFFECT_ON_RESULTS] = Field(default=0, ge=0, le=MOST_THREADS)
    """Threads of PyTorch per process; 0 for PyTorch's default."""
    output_dir: Annotated[str, NO_EFFECT_ON_RESULTS] = ""
    """The run directory; empty for a new one, in ``./runs`` under ``fedkd run`` and
    `fedkd_flwr.run`, in ``~/fedkd-runs`` under ``flwr run``."""
    cohort: Annotated[Literal["auto", "on", "off"], NO_EFFECT_ON_RESULTS] = "auto"
    """Whether clients with the same architecture are trained together in one process: ``auto`` if
    that is faster, ``on`` wherever possible, or ``off``."""
    on_client_error: Annotated[Literal["stop", "drop"], NO_EFFECT_ON_RESULTS] = "stop"
    """What an exception in your own code does in a client: stop ends the run at that line, drop
    counts it as a failed reply. In a deployment replies that fail are always dropped."""
    state_dir: Annotated[str, NO_EFFECT_ON_RESULTS] = ""
    """Folder in which clients keep their memory besides Flower's context; empty for none. Nodes of
    a deployment have their own."""
    models_dir: Annotated[str, NO_EFFECT_ON_RESULTS] = ""
    """Folder to which clients export their personalized models after the last round; empty for no
    export. Nodes of a deployment have their own."""
    keep_best: Annotated[bool, NO_EFFECT_ON_RESULTS] = False
    """Whether to export the models of the best round on validation data to `models_dir` too."""
    start_from: Annotated[str, DEFAULT_ON_NODES] = ""
    """Directory of a run whose models and state a new run starts from; ``{seed}`` in it stands for
    the seed. Method, architectures and clients have to be the same. Empty for none."""
    resume: Annotated[bool, NO_EFFECT_ON_RESULTS] = False
    """Whether to continue the run in `output_dir`."""
    accept_changes: Annotated[bool, NO_EFFECT_ON_RESULTS] = False
    """Whether to continue a run with another major version of this project, Flower or PyTorch, or
    with other code of one's own; a sweep then keeps finished runs of other code."""

    @field_validator("strategy")
    @classmethod
    def _known_strategy(cls, value: str) -> str:
        find_method(value)
        return value

    def resolved(self) -> "RunConfig":
        """Return the run config with the settings filled in that depend on other settings."""
        models = self.models.resolved(self.data.dataset)
        return self.model_copy(update={"models": models, "data": self.data.resolved()})

    @property
    def method(self) -> Method:
        """The method that `strategy` names."""
        return find_method(self.strategy)

    @property
    def data_plan(self) -> DataPlan:
        """What the clients' data depends on; equal plans share one decoded copy."""
        return self._data_plan(Need.PUBLIC_DATA in self.method.record.needs, self.torch_device)

    @property
    def server_data_plan(self) -> DataPlan:
        """What all data depends on, including the server's public set."""
        return self._data_plan(self.method.record.uses_public_data, self.server_device)

    def _data_plan(self, with_public_set: bool, device: str) -> DataPlan:
        settings = self.data
        # The held-out part leaves the pool whether or not a method uses it, so that all methods
        # are compared on the same private data. Another data set does not have to exist.
        if settings.public_dataset != HELD_OUT and not with_public_set:
            settings = settings.model_copy(update={"public_dataset": NO_PUBLIC_SET})
        return DataPlan(settings, self.plan.num_clients, self.plan.seed, device)

    @property
    def torch_device(self) -> str:
        """The device that ``auto`` stands for on this machine."""
        if self.device != "auto":
            return self.device
        import torch  # deferred: reading a config should not load PyTorch

        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def server_device(self) -> str:
        """The device of the server's process: the CPU if its machine lacks `torch_device`."""
        kind, _, index = self.torch_device.partition(":")
        if kind == "cpu":
            return kind
        import torch  # deferred, as above

        is_here = torch.cuda.is_available() and int(index or 0) < torch.cuda.device_count()
        return self.torch_device if is_here else "cpu"

    def server_plan(self) -> RunPlan:
        """Return what the server knows about the run before it starts."""
        return RunPlan(num_classes=self.data.num_classes, **dict(self.plan))


KEYS_WITHOUT_EFFECT = tuple(RunConfig.keys_without_effect())
"""Keys that say where and how a run takes place and do not change its results."""

DATA_KEYS = (
    *(
        key
        for key in DataSettings.flat_keys()
        if key not in (*KEYS_WITHOUT_EFFECT, "input-scaling", "public-scaling")
    ),
    "num-clients",
    "new-clients",
)
"""Keys that, with the seed, determine the clients' samples, the new clients and the public set."""
