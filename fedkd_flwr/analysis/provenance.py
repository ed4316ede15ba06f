"""Whether the runs of a comparison come from the same code and kind of machine."""

from collections.abc import Iterable, Mapping
from typing import Any

from fedkd_flwr.runs import Run
from fedkd_flwr.runs.provenance import legs_of

UNKNOWN = "not recorded"
"""Stands for what a run of an older version did not record."""


def notes_on_provenance(runs: Iterable[Run]) -> list[str]:
    """Note how runs differ besides their settings, which alone can change numbers.

    Each process that wrote rounds of a run counts.

    Parameters
    ----------
    runs : iterable of Run
        All runs of a comparison.

    Returns
    -------
    list of str
        At most two sentences: what differs, and whether code was modified after its commit.
    """
    makers = [_makers(run) for run in runs]
    made = [_made_by(maker) for own in makers for maker in own]
    values = {name: list(dict.fromkeys(one[name] for one in made)) for name in made[0]}
    differing = [f"{name} ({', '.join(found)})" for name, found in values.items() if len(found) > 1]
    notes = []
    if differing:
        notes.append(
            f"The runs differ in {'; '.join(differing)}. That alone can change numbers; rerun the "
            "older ones before you compare small gains."
        )
    modified = sum(any(_is_modified(maker) for maker in own) for own in makers)
    if modified:
        notes.append(f"Runs that code other than its recorded commit made: {modified}.")
    return notes


def _makers(run: Run) -> list[Mapping[str, Any]]:
    """Return what describes each process that wrote rounds of a run."""
    written = range((run.summary or {})["rounds"])
    return [leg for leg, rounds in legs_of(run.description) if written[rounds]]


def _is_modified(maker: Mapping[str, Any]) -> bool:
    return bool(maker.get("project", {}).get("modified", False))


def _made_by(description: Mapping[str, Any]) -> dict[str, str]:
    """Return what can change numbers, by the name to show."""
    project = description.get("project", {})
    versions = description.get("versions", {})
    return {
        "project version": project.get("version", UNKNOWN),
        "commit": project.get("commit", "")[:8] or UNKNOWN,
        "torch": versions.get("torch", UNKNOWN),
        "numpy": versions.get("numpy", UNKNOWN),
        "processor": description.get("processor", UNKNOWN),
        "vector extensions": description.get("vector_extensions", UNKNOWN),
        "device": description.get("device", UNKNOWN),
        "threads": str(description.get("torch_threads", UNKNOWN)),
    }
