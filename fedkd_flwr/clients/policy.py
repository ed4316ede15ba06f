"""What a node accepts and sends: the policy in its node config, set by its operator.

A run config comes from whoever starts a run. A node therefore checks it against its own policy
before it imports code that the run config names, and before it reads data. The run config can ask
for less than the policy allows, never for more.

The defaults are those of a deployment. In a simulation and in one process, server and nodes belong
to one user, and `TRUSTING_POLICY` replaces them. ``trust-server = true`` does the same for a node.
"""

import math
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, ValidationError

from fedkd_flwr.bundles.approved import read_approvals
from fedkd_flwr.bundles.approved_runs import APPROVED_RUNS, OWN_NOISE, digest_of_run, fixes_noise
from fedkd_flwr.clients.names_in_config import data_sets_read, overlap, place_of
from fedkd_flwr.config import ConfigError, Configuration, named_code
from fedkd_flwr.config.run_config import RunConfig
from fedkd_flwr.data.registry import DATASETS, hub_id_of, is_function
from fedkd_flwr.data.splits import read_split
from fedkd_flwr.methods import METHODS
from strategies.core.method_record import FAMILIES, Need
from strategies.core.plan import Settings
from strategies.core.settings_groups import SettingsGroup, Words, first_refused, kebab_case, one_of
from strategies.soft_predictions import SoftPredictionSettings

ALL = "all"
"""Word of ``allow-methods`` that allows everything."""

ANY = "any"
"""Word of ``client-split`` that allows every split."""

NOISED = "noised"
"""Word of ``allow-counts`` with which numbers of correct answers leave with noise."""

DEFAULT_SPLIT = "70/10/20"
"""The ``client-split`` of a node's own data, unless its operator sets another."""

SMALLEST_SIDE = 8
"""Pixels a side of images that can be compared with the public set.

Different ones with fewer are often equal, so that refusals would tell their brightness."""

FAMILY_WORDS = {family.replace(" ", "-"): family for family in FAMILIES}
"""The families of methods, as ``allow-methods`` names them."""


class PolicyError(RuntimeError):
    """A node refuses what a run asks for. The message is a fixed sentence, which may leave it."""


class NodeConfigError(ValueError):
    """A node config that cannot be used; the message says what is allowed."""


def _known_methods(words: tuple[str, ...]) -> tuple[str, ...]:
    allowed = (ALL, *FAMILY_WORDS, *METHODS)
    return tuple(one_of(word, allowed) for word in words)


def _readable_split(split: str) -> str:
    """Check a split that the operator wrote."""
    if split != ANY:
        read_split(split)
    return split


class NodePolicy(SettingsGroup):
    """The policy of a node, with the defaults of a deployment.

    Attributes
    ----------
    trust_server : bool
        Whether whoever starts runs may see all data of the node, because both are one user's.
    allow_methods : tuple of str
        Methods that the node takes part in, in runs that its operator has not approved: names,
        families (``soft-predictions``, ``parameters``, ``class-means``, ``nothing``), or ``all``.
    approved_runs : str
        List of the run configs that the operator has approved, as ``fedkd runs approve`` writes it.
        Other runs may name no code, and each setting has to lie in its range on nodes
        (`strategies.core.settings_groups.OnNodes`).
    allow_counts : bool or "noised"
        Whether the node reports its numbers of correct answers and mean losses. They stand in the
        operator's log either way. ``noised`` sends numbers of correct answers with noise, of
        samples without, and no losses.
    count_noise : float
        Standard deviation of that noise, in samples.
    count_budget : float
        Largest epsilon of all noised counts together, for each validation or test sample, at
        `privacy_delta`.
    allow_training_metrics : bool
        Whether the node reports what it measures in training, such as the mean loss on training
        samples. Whoever starts runs can choose settings with which it depends on a single sample.
    public_root : str
        Folder in which data must lie that the run config names; empty for none.
    min_noise : float
        Smallest ``noise-multiplier`` with which the node sends predictions, or smallest
        ``dp-sgd-noise-multiplier`` with which it trains. At 0, `epsilon_budget` alone decides.
    client_split : str
        The only ``client-split`` of the node's own data, or ``any``. A run config may name no
        other, since runs with nearly equal splits differ in single samples.
    min_class_count : int
        Classes with fewer samples are reported as absent. A node with fewer training, validation or
        test samples takes no part; it may have no validation samples. No step of a training
        mixes fewer.
    epsilon_budget : float
        Largest epsilon of all runs together at `privacy_delta`. Releases of predictions and
        trainings by DP-SGD are counted apart. What leaves without noise has an infinite epsilon,
        so only ``inf`` allows it.
    privacy_delta : float
        delta at which `epsilon_budget` is counted, whatever the run config says.
    """

    trust_server: bool = False
    allow_methods: Annotated[Words, AfterValidator(_known_methods)] = (
        "soft-predictions",
        "nothing",
    )
    approved_runs: str = str(APPROVED_RUNS)
    allow_counts: bool | Literal["noised"] = False
    count_noise: float = Field(default=5.0, ge=0.5)
    count_budget: float = Field(default=10.0, ge=0, allow_inf_nan=True)
    allow_training_metrics: bool = False
    public_root: str = ""
    min_noise: float = Field(default=0.0, ge=0)
    client_split: Annotated[str, AfterValidator(_readable_split)] = DEFAULT_SPLIT
    min_class_count: int = Field(default=10, ge=0)
    epsilon_budget: float = Field(default=1.0, ge=0, allow_inf_nan=True)
    privacy_delta: float = Field(default=1e-5, gt=0, lt=1)

    # ---- Checks of a run config ----------------------------------------------------------

    def check_names(self, run_config: Mapping[str, Any], data_path: str) -> None:
        """Refuse a flat run config that names data outside the policy, or code without approval.

        Call it before the config is read, since reading imports custom methods and data sets.

        Parameters
        ----------
        run_config : mapping
            As it came, not validated.
        data_path : str
            The node's own data; empty for a share of the run's data set.

        Raises
        ------
        PolicyError
            If it does.
        """
        if self.trust_server:
            return
        if any(named_code(run_config)) and not self.approves(run_config):
            raise PolicyError("the run names code, and this node has not approved the run")
        self._check_places(run_config, data_path)

    def approves(self, run_config: Mapping[str, Any]) -> bool:
        """Return whether the operator has approved a flat run config; not one that is invalid."""
        file = Path(self.approved_runs).expanduser()
        try:
            digest = digest_of_run(run_config)
        except ConfigError:
            return False
        return digest in {known.digest for known in read_approvals(file)}

    def check_run(self, configuration: Configuration, run_config: Mapping[str, Any]) -> None:
        """Refuse a run that asks for more than the policy allows.

        Parameters
        ----------
        configuration : Configuration
            The run config.
        run_config : mapping
            The same, flat, as it came; empty in one process.

        Raises
        ------
        PolicyError
            With the setting and its range, or the key of the node config that forbids it.
        """
        run, settings = configuration.run, configuration.settings
        if not self.trust_server and fixes_noise(configuration):
            raise PolicyError(OWN_NOISE)
        if not (self.trust_server or self.approves(run_config or configuration.flat())):
            if not self._allows_method(run):
                raise PolicyError("the method of the run is not in allow-methods of this node")
            for key, allowed in [*run.outside(self.flat()), *settings.outside(self.flat())]:
                raise PolicyError(f"{key} has to be {allowed}, unless this node approves the run")
        if Need.COUNTS in run.method.record.needs and not self.tells_counts:
            raise PolicyError("the method needs counts; this node would need allow-counts=true")
        if self.allow_counts == NOISED and chooses_by_validation(run):
            raise PolicyError(
                "the run chooses models by validation samples, which allow-counts=noised does not "
                "cover; set safeguard to none and take a method that needs no validation samples"
            )
        self._check_noise(run, settings)

    def _check_noise(self, run: RunConfig, settings: Settings) -> None:
        if run.method.record.family == "nothing":
            return
        if noise_of(run, settings) < self.min_noise:
            raise PolicyError("the run has less noise than min-noise of this node")
        if self.has_budget and not has_noise(run, settings):
            raise PolicyError(
                "this node lets nothing leave without noise; epsilon-budget=inf in its node "
                "config would allow it"
            )

    def _check_places(self, run_config: Mapping[str, Any], data_path: str) -> None:
        data_root = str(run_config.get("data-root", ""))
        for name in data_sets_read(run_config, data_path):
            if not self._allows_data_set(name, data_root):
                raise PolicyError("the run names data outside public-root of this node")
            place = place_of(name, data_root)
            if place and data_path and overlap(place, Path(data_path)):
                raise PolicyError("the run names private data of this node as other data")

    def _allows_method(self, run: RunConfig) -> bool:
        words = {FAMILY_WORDS.get(word, word) for word in self.allow_methods}
        built_in = METHODS.get(run.strategy)
        if built_in is None or built_in.record.only_by_name:
            return run.strategy in words
        return bool(words & {ALL, run.strategy, built_in.record.family})

    def _allows_data_set(self, name: str, data_root: str) -> bool:
        try:
            place = place_of(name, data_root)
        except RuntimeError:
            return False  # ~NAME of an account that does not exist
        if place is not None:
            root = Path(self.public_root).expanduser().resolve()
            return bool(self.public_root) and place.resolve().is_relative_to(root)
        if is_function(name):
            return True  # code, which the operator has approved
        # Hugging Face would read a folder of that name, relative to the working directory.
        return name in DATASETS and not Path(hub_id_of(name) or "/nowhere").exists()

    # ---- Limits on what leaves ------------------------------------------------------------

    def check_data(
        self, sizes: tuple[int, int, int], in_public: int, compared: tuple[int, ...] = ()
    ) -> None:
        """Refuse to take part with few samples, or with private samples in the public set.

        Parameters
        ----------
        sizes : tuple of int
            Numbers of training, validation and test samples. Results on few samples reveal single
            ones. There may be no validation samples.
        in_public : int
            Number of the node's own samples that are in the public set, by content. It counts
            where predictions may leave without noise. Else a refusal would tell more than they do.
        compared : tuple of int
            Shape of these samples if they are images and were compared, else empty.

        Raises
        ------
        PolicyError
            If there are fewer than `min_class_count`, or any in the public set, or if they are
            images with sides below `SMALLEST_SIDE`.
        """
        if not self.trust_server and not self.has_budget:
            if len(compared) == 3 and min(compared[1:]) < SMALLEST_SIDE:
                raise PolicyError(
                    f"image-shape has fewer than {SMALLEST_SIDE} pixels a side, too few to compare "
                    "private images with public ones"
                )
            if in_public:
                raise PolicyError("the public set holds private samples of this node")
        train, validation, test = sizes
        if min(train, validation or train, test) < self.min_class_count:
            raise PolicyError(
                "this node has fewer training, validation or test samples than min-class-count"
            )

    def reported(self, counts: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which classes are reported as present.

        A class with fewer samples than `min_class_count` is not. If the hidden classes together
        have fewer, the smallest of the others is hidden too: totals would tell their number.

        Parameters
        ----------
        counts : ndarray
            Shape (K,), samples of each class.

        Returns
        -------
        ndarray
            Shape (K,), bool.
        """
        shown = np.asarray(counts >= max(1, self.min_class_count))
        while 0 < counts[~shown].sum() < self.min_class_count and shown.any():
            shown[np.where(shown, counts, np.inf).argmin()] = False
        return shown

    @property
    def has_budget(self) -> bool:
        """Whether `epsilon_budget` is finite, so that a ledger is needed."""
        return math.isfinite(self.epsilon_budget)

    @property
    def tells_counts(self) -> bool:
        """Whether the server may know results as they are."""
        return self.allow_counts is True

    @property
    def hides_divergence(self) -> bool:
        """Whether the server must not learn that a training diverged.

        That depends on single samples, and carries no noise.
        """
        return not self.trust_server and (self.has_budget or not self.tells_counts)

    @property
    def tells_answers(self) -> bool:
        """Whether the server may know which test images the node's model gets right."""
        return self.trust_server and self.tells_counts

    def described(self) -> str:
        """Return the policy in one line, as ``fedkd doctor`` shows it."""
        values = {key: _as_text(value) for key, value in self.flat().items()}
        return ", ".join(f"{key} = {value}" for key, value in values.items())


TRUSTING_POLICY = NodePolicy(
    trust_server=True,
    allow_methods=(ALL,),
    allow_counts=True,
    allow_training_metrics=True,
    client_split=ANY,
    min_class_count=0,
    epsilon_budget=math.inf,
)
"""The policy where server and nodes belong to one user."""

TRUSTED_NODE = {"trust-server": True}
"""Node config of clients that this process creates by itself."""

POLICY_KEYS = tuple(NodePolicy.flat_keys())
"""The keys of a node config that `NodePolicy` reads."""


def read_policy(node_config: Mapping[str, Any]) -> NodePolicy:
    """Read the policy of a node.

    Parameters
    ----------
    node_config : mapping
        The node config. Keys that are left out have the defaults of a deployment, or those of
        `TRUSTING_POLICY` where server and node belong to one user.

    Raises
    ------
    NodeConfigError
        If a value is not allowed.
    """
    given = {key: node_config[key] for key in POLICY_KEYS if key in node_config}
    trusts = given.get("trust-server", is_simulation())
    return _validated_policy(trusts is True, tuple((k, v, type(v)) for k, v in given.items()))


# All clients of a process have one policy, and each message reads it. The type counts, since
# 1 equals True.
@lru_cache(maxsize=16)
def _validated_policy(trusts: bool, given: tuple[tuple[str, Any, type], ...]) -> NodePolicy:
    defaults = TRUSTING_POLICY.flat() if trusts else {}
    try:
        return NodePolicy.model_validate({**defaults, **{key: value for key, value, _ in given}})
    except ValidationError as error:
        raise NodeConfigError(f"in the node's config, {first_refused(error, kebab_case)}") from None


def is_simulation() -> bool:
    """Return whether this process belongs to a simulation, where a single user runs all nodes."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(value) or "none"
    return (f"{value:g}" if isinstance(value, float) else str(value)) or "none"


def noise_of(run: RunConfig, settings: Settings) -> float:
    """Return the multiplier of the noise on predictions or in training, whichever is larger."""
    of_predictions = isinstance(settings, SoftPredictionSettings) and settings.noise_multiplier
    return max(float(of_predictions), run.dp_sgd.noise_multiplier)


def chooses_by_validation(run: RunConfig) -> bool:
    """Return whether a validation sample can change which model is evaluated.

    It then changes counts by more than 1, the most that their noise hides.
    """
    needs_validation = Need.VALIDATION_DATA in run.method.record.needs
    stops_early = run.training.fine_tune_early_stopping
    return run.plan.safeguard.is_on or stops_early or needs_validation


def has_noise(run: RunConfig, settings: Settings) -> bool:
    """Return whether what leaves a client has noise, that of `noise_of` or a method's own."""
    is_private = isinstance(settings, SoftPredictionSettings) and settings.is_private
    return is_private or bool(noise_of(run, settings))
