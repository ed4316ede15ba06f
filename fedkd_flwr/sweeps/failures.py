"""Why runs of a sweep failed."""

import json
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True)
class Failure:
    """Why a run failed.

    Attributes
    ----------
    kind, message : str
        The exception's type and text.
    traceback : str
        Where it came from.
    """

    kind: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Describe an exception as text, which can be sent between processes."""
        lines = "".join(traceback.format_exception(error))
        return cls(type(error).__name__, str(error), lines)


def record_failure(folder: Path, name: str, failure: Failure) -> None:
    """Append a failure to ``failures.jsonl`` in the folder of the runs."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "run": name,
        "error": f"{failure.kind}: {failure.message}",
        "traceback": failure.traceback,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with (folder / "failures.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
