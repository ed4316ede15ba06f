"""What the numbers of a run depend on, and whether runs are on the same data."""

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from fedkd_flwr.config import DATA_KEYS, KEYS_WITHOUT_EFFECT, ConfigError, default_values
from fedkd_flwr.config.suggestions import OLD_KEYS
from fedkd_flwr.methods import METHODS
from fedkd_flwr.runs import Run
from fedkd_flwr.runs.provenance import code_of, python_of
from strategies.core.plan import PlanSettings


class IncomparableRunsError(ConfigError):
    """Runs that cannot be compared; the message is one sentence for the user."""


def defining_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a run's numbers depend on.

    What the config lacks has its default. The common keys without `KEYS_WITHOUT_EFFECT`, the
    method's own table, and every key that this version does not know: nobody can tell that it does
    not matter.
    """
    names = [*default_values(), *(name for name in config if name not in default_values())]
    unread = _keys_of_others(config["strategy"])
    return {
        name: config.get(name, default_values().get(name))
        for name in names
        if name not in KEYS_WITHOUT_EFFECT and name not in unread
    }


def plan_of(config: Mapping[str, Any]) -> PlanSettings:
    """Return a plan that tells how many clients of a run train, and how many join later."""
    number, new = config["num-clients"], config.get("new-clients", 0.0)
    return PlanSettings(num_clients=number, new_clients=new)


@functools.cache
def _keys_of_others(strategy: str) -> frozenset[str]:
    """Return the known keys of tables that a method does not read; none if it is unknown."""
    method = METHODS.get(strategy)
    if method is None:
        return frozenset()
    own = method.record.settings_type.flat_keys()  # PFedDF's are in FedDF's table too
    return frozenset(name for name in default_values() if "." in name and name not in own)


def varied_settings(runs: Iterable[Run]) -> list[str]:
    """Return the settings, other than data and seed, that not all runs share.

    Keys of a table count where a run has them: else the table is that of another method. A removed
    key is missing where it was neutral, which counts.
    """

    def counts_everywhere(name: str) -> bool:
        return "." not in name or name in OLD_KEYS

    settings = [defining_settings(run.config) for run in runs]
    names = dict.fromkeys(name for own in settings for name in own)
    known = {*DATA_KEYS, "seed", "strategy"}
    return [
        name
        for name in names
        if name not in known
        and len({own.get(name) for own in settings if name in own or counts_everywhere(name)}) > 1
    ]


def check_same_data(runs: Iterable[Run]) -> None:
    """Refuse runs on different splits or public sets.

    Raises `IncomparableRunsError` with the keys that differ and their values.
    """
    values: dict[str, set[str]] = {key: set() for key in DATA_KEYS}
    for run in runs:
        settings = defining_settings(run.config)
        if settings["public-dataset"] != "held-out":
            settings["held-out-size"] = 0
        for key in DATA_KEYS:
            values[key].add(str(settings[key]))
    # A run without a public set has the same splits as one whose public set is another data
    # set; a held-out set is taken from the clients' data.
    if "held-out" not in values["public-dataset"]:
        values["public-dataset"].discard("none")
    differing = [f"{key} ({', '.join(sorted(v))})" for key, v in values.items() if len(v) > 1]
    if differing:
        raise IncomparableRunsError(
            f"The runs are on different data and cannot be compared: {', '.join(differing)}."
        )


def notes_on_content(runs: Iterable[Run]) -> list[str]:
    """Return a note for each data set whose recorded content is not the same in all runs.

    Splits are compared between runs of the same seed.
    """
    digests: dict[tuple[str, int | None], set[str]] = defaultdict(set)
    for run in runs:
        for key, digest in run.description.get("data", {}).items():
            digests[key, run.config["seed"] if key == "split" else None].add(digest)
    differing = dict.fromkeys(key for (key, _), found in digests.items() if len(found) > 1)
    return [
        f"The {key} of these runs is not the same in all of them, by the digests in config.json; "
        "their numbers cannot be compared."
        for key in differing
    ]


def notes_on_code(runs: Iterable[Run]) -> list[str]:
    """Return a note for each own object that is not the same in all runs of one Python version."""
    digests: dict[tuple[str, str], set[str]] = defaultdict(set)
    for run in runs:
        for name, digest in code_of(run.description).items():
            digests[name, python_of(run.description)].add(digest)
    differing = dict.fromkeys(name for (name, _), found in digests.items() if len(found) > 1)
    return [
        f"The code of {name} is not the same in all of these runs, by the digests in config.json: "
        "differences between methods may come from that."
        for name in differing
    ]
