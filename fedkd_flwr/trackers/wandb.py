"""Weights & Biases: online or, with ``WANDB_MODE=offline``, in the run directory.

``WANDB_PROJECT``, ``WANDB_ENTITY`` and the other variables of wandb apply. The default project is
``fedkd-flwr``.
"""

import os
from collections.abc import Mapping
from pathlib import Path

# Nothing is sent to third parties by default.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb

from fedkd_flwr.runs.reading import Run

WITHOUT_NETWORK = ("offline", "dryrun", "disabled")
"""Values of ``WANDB_MODE`` that need no account."""


class WeightsAndBiases:
    """Writes a run with one step per round.

    Parameters
    ----------
    run : Run
        The run that starts or is continued; wandb joins the parts of a run by its id.

    Attributes
    ----------
    is_new : bool
        Whether the folder had no files of the run, or rounds of it are done again. wandb cannot
        remove a round, so these begin a run with another id.

    Raises
    ------
    PermissionError
        If there is no API key.
    """

    def __init__(self, run: Run) -> None:
        # wandb would ask for the key below the progress bar, and wait.
        mode = wandb.setup().settings.mode
        if mode not in WITHOUT_NETWORK and not wandb.login(prompt=False, verify=False):
            raise PermissionError(
                "there is no API key; type `wandb login` or set WANDB_MODE=offline"
            )
        used = _ids_in(run.path / "wandb", run.description["id"])
        self.is_new = not used or run.repeats_rounds
        self._run = wandb.init(
            dir=run.path,
            id=_next_id(run.description["id"], used) if self.is_new else used[-1],
            name=run.path.name,
            project=os.environ.get("WANDB_PROJECT", "fedkd-flwr"),
            config=run.config,
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, server_round: int, values: Mapping[str, float]) -> None:
        """Write the values of one round."""
        self._run.log(dict(values), step=server_round, commit=True)

    def finish(self, values: Mapping[str, float]) -> None:
        """Write the summary, and wait until everything is written or sent."""
        self._run.summary.update(dict(values))
        self._run.finish()

    def stop(self) -> None:
        """Mark the run as failed; it can be continued."""
        self._run.finish(exit_code=1)


def _ids_in(folder: Path, run_id: str) -> list[str]:
    """Return the ids under which a run was written to a folder, in the order of time.

    Names of wandb's folders are ``run-TIME-ID``, or ``offline-run-TIME-ID``.
    """
    names = sorted(part.name.partition("run-")[2] for part in folder.glob(f"*run-*-{run_id}*"))
    return [name[name.index(run_id) :] for name in names]


def _next_id(run_id: str, used: list[str]) -> str:
    """Return the id of a run, and with a number if some are used."""
    return f"{run_id}-{len(set(used)) + 1}" if used else run_id
