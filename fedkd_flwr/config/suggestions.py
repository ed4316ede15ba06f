"""Suggestions for unknown settings."""

import difflib
from collections.abc import Collection, Sequence

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
