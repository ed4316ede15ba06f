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


def suggestions(name: str, known: Collection[str], own: Collection[str]) -> list[str]:
    """Return the settings that a name may refer to, the most likely first.

    Parameters
    ----------
    name : str
        The unknown name.
    known : collection of str
        All settings.
    own : collection of str
        The settings of the chosen method, which have priority.
    """
    word = name.lower().replace("_", "-")
    if word in known:
        return [word]
    last = word.rpartition(".")[2]
    same_word = [key for key in known if key.rpartition(".")[2] == last]
    of_method = [key for key in same_word if key in own]
    if last in COMMON_WORDS:
        return [COMMON_WORDS[last], *of_method]
    return of_method or same_word or difflib.get_close_matches(word, known, n=3)


def either(names: Sequence[str]) -> str:
    """Join names, ``a, b or c``."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
