"""Flower's SuperExec, for ClientApps of approved bundles alone.

It asks a SuperNode for tasks, and starts a process of `fedkd_flwr.bundles.guard` for each. If
Flower moves a name that is replaced here, it ends with an error.
"""

import os
import sys
from collections.abc import Sequence

from fedkd_flwr.bundles.forking import fork_client_apps
from strategies.core import flower

CLIENT_APP_PROGRAM = "fedkd-clientapp"
"""The program that `fedkd_flwr.bundles.guard.run_client_app` is installed as."""


def run_superexec(arguments: Sequence[str], *, fresh_processes: bool = False) -> None:
    """Run Flower's ``flower-superexec`` for ClientApps of approved bundles alone.

    Parameters
    ----------
    arguments : sequence of str
        Options of ``flower-superexec``.
    fresh_processes : bool
        Start a new Python for each message, instead of forking one that has loaded PyTorch.

    Raises
    ------
    ForkingUnsafeError
        If processes cannot be forked here.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when Flower is imported
    client_app = flower.TaskType.CLIENT_APP
    # Other tasks would execute the bundle in processes that do not look at its digest.
    flower.AutoExecPlugin.supported_task_types = frozenset({client_app})
    flower.TASK_TYPE_TO_COMMAND.clear()
    flower.TASK_TYPE_TO_COMMAND[client_app] = CLIENT_APP_PROGRAM
    if not fresh_processes:
        fork_client_apps()
    sys.argv = ["flower-superexec", *arguments]
    flower.flower_superexec()
