"""What a train message enters on a client: files, functions and calls of the project.

``python -m tests.message_path METHOD...`` counts from the client app's train handler on, at the
last client of the second round, with `mlp`, the default settings and no cohort.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import fedkd_flwr

ROOT = Path(__file__).parents[1]
PACKAGES = tuple(f"{ROOT}/{package}/" for package in ("fedkd_flwr", "strategies"))
HANDLER = f"{ROOT}/fedkd_flwr/client_app.py", "train"
DEFAULTS = {"models": "mlp", "num-server-rounds": 2, "num-clients": 4, "cohort": "off"}


class Entered(NamedTuple):
    """What was entered; a generator counts as called whenever it goes on."""

    files: int
    functions: int
    calls: int


def trains(frame):
    """Return whether a message asks for a round's training, and not for what follows it."""
    return frame.f_locals["message"].content["config"]["phase"] == "train"


def entered(strategy, **changes):
    """Run a method, and return what the last train message enters."""
    handler, calls = None, Counter()

    def profile(frame, event, argument):
        nonlocal handler
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if event == "call" and handler is None and (file, name) == HANDLER and trains(frame):
            handler = frame
            calls.clear()
        if event == "call" and handler is not None and file.startswith(PACKAGES):
            calls[file, name] += 1
        if event == "return" and frame is handler:
            handler = None

    settings = {**DEFAULTS, **changes, "strategy": strategy, "device": "cpu"}
    before = sys.getprofile()
    with tempfile.TemporaryDirectory() as folder:
        sys.setprofile(profile)
        try:
            fedkd_flwr.run(settings, output_dir=Path(folder) / "run")
        finally:
            sys.setprofile(before)
    return Entered(len({file for file, _ in calls}), len(calls), calls.total())


def main(strategies):
    for strategy in strategies or ("kt-pfl", "local"):
        found = entered(strategy)
        print(
            f"A train message of {strategy} enters {found.files} files, {found.functions} "
            f"functions and {found.calls} calls."
        )


if __name__ == "__main__":
    main(sys.argv[1:])
