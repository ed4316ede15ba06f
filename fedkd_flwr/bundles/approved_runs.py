"""Run configs that a node's operator has approved, by the digest of what they ask of a node."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedkd_flwr.bundles.approved import Approval, add, digest_of
from fedkd_flwr.config import (
    ALL_CONNECTED,
    ConfigError,
    Configuration,
    completed,
    named_code,
    read_config,
)
from fedkd_flwr.config.run_config import RunConfig
from fedkd_flwr.data.registry import FOLDER
from strategies.core.replies import shortened
from strategies.core.settings_groups import DEFAULT_ON_NODES
from strategies.soft_predictions import SoftPredictionSettings

APPROVED_RUNS = Path("/etc/fedkd/approved-runs")
"""Where the list of run configs is, unless the node config has ``approved-runs``."""

FREE_KEYS = frozenset(
    key
    for key in RunConfig.keys_without_effect()
    if DEFAULT_ON_NODES not in RunConfig.fields_by_key()[key].metadata
)
"""Keys of a run config on which its digest does not depend, such as folders and timeouts."""

NOISE_SEEDS = ("soft-predictions.noise-seed", "dp-sgd-noise-seed")
"""Keys with which whoever starts a run could subtract the noise."""

OWN_NOISE = "a node draws its own noise, in approved runs too; leave noise-seed out"
"""Why a run with one of `NOISE_SEEDS` is refused."""


def fixes_noise(configuration: Configuration) -> bool:
    """Return whether a run says how nodes draw their noise."""
    values = configuration.flat()
    return any(float(values[key]) >= 0 for key in NOISE_SEEDS)


def digest_of_run(run_config: Mapping[str, Any]) -> str:
    """Return the SHA-256 digest of what a flat run config asks of a node.

    A setting that is left out or open counts as what it stands for, so that `fedkd run` and
    ``flwr run`` ask for the same. Nothing that the config names is imported. Raises `ConfigError`
    if a value is out of range, or ``own-settings`` cannot be read.
    """
    asked = completed(run_config)
    if str(asked["dataset"]).startswith(FOLDER):
        # A mere name for nodes with own data; each machine completes it by its working directory.
        asked["dataset"] = FOLDER + Path(str(asked["dataset"]).removeprefix(FOLDER)).name
    values = {key: value for key, value in asked.items() if key not in FREE_KEYS}
    return digest_of(json.dumps(values, sort_keys=True).encode())


def approve_run(values: Mapping[str, Any], file: Path) -> tuple[Approval, Configuration]:
    """Approve the run that ``fedkd run --engine deployment`` starts with some settings.

    Parameters
    ----------
    values : mapping
        Flat run config, as in a preset.
    file : Path
        The list of approved runs.

    Returns
    -------
    Approval
        Its line of the list.
    Configuration
        The run config, for `consequences`.

    Raises
    ------
    ConfigError
        If the run config cannot be read, or fixes the noise. Code that it names is imported.
    BundleError, OSError
        If the list cannot be read or written.
    """
    configuration = read_config({**ALL_CONNECTED, **values})
    if fixes_noise(configuration):
        raise ConfigError(f"No node takes part in this run: {OWN_NOISE}.")
    run, digest = configuration.run, digest_of_run(configuration.for_flower())
    remark = f"{run.strategy}, {run.plan.num_server_rounds} rounds"
    shown = "".join(filter(str.isprintable, remark))
    return add(Approval(digest, shown), file), configuration


def consequences(configuration: Configuration, node: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a run sends of a client, how often, with which epsilon, and what is unusual.

    Parameters
    ----------
    configuration : Configuration
        The run config.
    node : mapping
        The values of a node's config.
    """
    run, settings = configuration.run, configuration.settings
    rounds, record = run.plan.num_server_rounds, run.method.record
    yield f"It sends {record.exchanged or 'what the method does not declare'}, {rounds} times."
    if run.plan.measures:
        yield f"It asks for {', '.join(run.plan.measures)} at each evaluation."
    if isinstance(settings, SoftPredictionSettings) and settings.is_private:
        # Not at the delta of whoever starts the run.
        counted = settings.model_copy(update={"delta": node["privacy-delta"]})
        epsilon, delta = counted.privacy_spent(rounds)
        yield (
            f"Their predictions have epsilon {epsilon:.3g} at delta {delta:g}. A server can ask "
            "again; a finite epsilon-budget alone limits that."
        )
    elif run.dp_sgd.noise_multiplier:
        yield (
            f"Trainings have noise multiplier {run.dp_sgd.noise_multiplier:g}; `fedkd doctor` says "
            "what a round of them spends."
        )
    elif record.family != "nothing":
        yield "It has no noise: epsilon is infinite."
    for key, name in named_code(configuration.for_flower()):
        yield f"{key} names code: {name}."
    for key, allowed in [*run.outside(node), *settings.outside(node)]:
        value = shortened(configuration.flat()[key])  # on one line, whoever wrote it
        yield f"{key} is {value}; without approval it has to be {allowed}."
