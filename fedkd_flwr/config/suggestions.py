"""What to write instead of a key that this version does not have: an old one, or a mistyped one.

A run that an earlier version recorded is read with the keys of this one (`current_config`). A new
config with an old key is refused with `replacement`. To rename a key, add
``"old": OldKey(new="its-new-name")``. Several tables may become one: of the old keys with one new
name, that of the table that the run's method read counts.
"""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedkd_flwr.config.run_config import Scalar
from fedkd_flwr.methods import METHODS

COMMON_WORDS = {
    "algorithm": "strategy",
    "batch": "batch-size",
    "bs": "batch-size",
    "clients": "num-clients",
    "data": "dataset",
    "epochs": "local-epochs",
    "fraction": "fraction-train",
    "gpu": "device",
    "iterations": "local-iterations",
    "local-steps": "local-iterations",
    "lr": "learning-rate",
    "method": "strategy",
    "model": "models",
    "num-rounds": "num-server-rounds",
    "participation": "fraction-train",
    "rounds": "num-server-rounds",
    "threads": "torch-threads",
}
"""Common names of settings that have another name here."""

OPTIONS = (
    "allow-code", "engine", "federation-config", "per-client", "save-models", "verbose",
    "with-local",
)  # fmt: skip
"""Options of ``fedkd run`` that are no settings."""


def suggestions(name: str, known: Collection[str], own: Collection[str]) -> list[str]:
    """Return the settings that a name may refer to, those of its table first."""
    word = name.lower().replace("_", "-")
    if word in known:
        return [word]
    if of_table := _of_table(word, known):
        return of_table
    last = word.rpartition(".")[2]
    same_word = [key for key in known if key.rpartition(".")[2] == last]
    of_method = [key for key in same_word if key in own]
    if last in COMMON_WORDS:
        return [COMMON_WORDS[last], *of_method]
    return of_method or same_word or difflib.get_close_matches(word, known, n=3)


def _of_table(word: str, known: Collection[str]) -> list[str]:
    """Return the keys that a key of a method's table may stand for; none for other words."""
    table, _, last = word.rpartition(".")
    keys = {key.rpartition(".")[2]: key for key in known if table and key.startswith(f"{table}.")}
    if not keys:
        return []
    longer = [name for name in keys if set(last.split("-")) <= set(name.split("-"))]
    similar = longer or difflib.get_close_matches(last, keys, n=3)
    common = COMMON_WORDS.get(last, last)
    meant = [*(keys[name] for name in similar), *([common] if common in known else [])]
    return meant or difflib.get_close_matches(word, keys.values(), n=3)


def either(names: Sequence[str]) -> str:
    """Join names, ``a, b or c``."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


@dataclass(frozen=True)
class OldKey:
    """What became of a key: its name now, or what to do instead of setting it.

    With the value `neutral`, a run had the numbers of one without a removed key; None if every
    value had them.
    """

    new: str = ""
    instead: str = ""
    neutral: Scalar | None = None

    def was_neutral(self, value: Any) -> bool:
        """Return whether a run with this value has the numbers that it has without the key."""
        return self.neutral is None or value == self.neutral


DISTILLING = ("kt-pfl", "ds-fl", "selective-fd", "privatekt")
"""Tables of methods whose clients distill a teacher."""

OLD_KEYS: Mapping[str, OldKey] = {
    **dict.fromkeys(
        (f"{table}.cache-rounds" for table in (*DISTILLING, "perfed-ckt")),
        OldKey(instead="leave it out; number-format = int8 sends fewer bytes", neutral=0),
    ),
    **dict.fromkeys(
        (f"{table}.class-temperature-rate" for table in DISTILLING),
        OldKey(instead="leave it out; temperature holds for all classes", neutral=0),
    ),
    **{
        f"{table}.{name}": OldKey(new=f"soft-predictions.{name}")
        for table in (*DISTILLING, "perfed-ckt")
        for name in (
            "number-format",
            "mixing",
            "clip-norm",
            "noise-multiplier",
            "noise-seed",
            "delta",
        )
    },
    "client-dp-noise-multiplier": OldKey(
        instead="use dp-sgd-noise-multiplier, or soft-predictions.noise-multiplier", neutral=0
    ),
    "client-dp-clip-norm": OldKey(instead="use dp-sgd-clip-norm"),
    "client-dp-delta": OldKey(instead="use dp-sgd-delta"),
    "from-round": OldKey(
        instead="keep a copy of the run directory of the round to return to, and resume the copy"
    ),
    "keep-rounds": OldKey(instead="leave it out; a run keeps its last two checkpoints"),
    "other-versions": OldKey(new="accept-changes"),
    "genotype": OldKey(
        instead="leave it out; darts-fixed has the cells that DARTS published", neutral=""
    ),
}
"""Keys of earlier versions by their names."""

DIVIDED_KEYS = {"kt-pfl.coefficient-batch-size": "kt-pfl.public-batch-size"}
"""Keys that earlier versions did not have, and the key that also was what they are."""


def replacement(name: str) -> str:
    """Return one sentence that says what to use instead of an old key; else empty."""
    old = OLD_KEYS.get(name)
    if old is None:
        return ""
    if old.new:
        return f"The key {name} is now {old.new}: type {old.new} instead."
    return f"The key {name} was removed after version 0.1: {old.instead}."


def current_config(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded flat run config in keys of this version; `lost_keys` stay."""
    lost = lost_keys(recorded)
    current = {key: value for key, value in recorded.items() if key not in OLD_KEYS or key in lost}
    for key, value in recorded.items():
        new = OLD_KEYS[key].new if key in OLD_KEYS else ""
        if new and _is_read(key, recorded):
            current.setdefault(new, value)
    for key, before in DIVIDED_KEYS.items():
        if before in recorded:
            current.setdefault(key, recorded[before])
    return current


def lost_keys(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the removed keys, with their values, that a run's numbers depend on."""
    return {
        key: value
        for key, value in recorded.items()
        if (old := OLD_KEYS.get(key))
        and not (old.new or old.was_neutral(value))
        and _is_read(key, recorded)
    }


def readable_config(current: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return a recorded run config without removed keys, also those of a custom table."""
    lost = lost_keys(current)
    inherited = {key.rpartition(".")[2]: old for key, old in OLD_KEYS.items() if "." in key}

    def is_removed(key: str, value: Any) -> bool:
        _, dot, last = key.rpartition(".")
        old = inherited.get(last) if dot and key not in known else None
        return key in lost or (old is not None and not old.new and old.was_neutral(value))

    return {key: value for key, value in current.items() if not is_removed(key, value)}


def _is_read(key: str, recorded: Mapping[str, Any]) -> bool:
    """Return whether a run's method read a key. A custom one is not imported: it may read any."""
    table, _, _ = key.rpartition(".")
    method = METHODS.get(recorded["strategy"])
    return not table or method is None or method.record.settings_type.table == table
