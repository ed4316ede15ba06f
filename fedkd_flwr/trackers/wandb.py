"""Weights & Biases: a run of its own name, online or, with ``WANDB_MODE=offline``, in the folder.

``WANDB_PROJECT``, ``WANDB_ENTITY`` and the other variables of wandb hold; the project is
``fedkd-flwr`` where none is named.
"""

import os
from collections.abc import Mapping

# A run tells nobody but whom its user names.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb

from fedkd_flwr.runs.reading import Run

WITHOUT_NETWORK = ("offline", "dryrun", "disabled")
"""Values of ``WANDB_MODE`` that need no account."""


class WeightsAndBiases:
    """Writes a run with one step a round.

    Parameters
    ----------
    run : Run
        That begins or goes on, under its id: wandb puts the legs of a run together.

    Attributes
    ----------
    is_new : bool
        Whether the folder had nothing of the run.

    Raises
    ------
    PermissionError
        If wandb would have to ask for a key.
    """

    def __init__(self, run: Run) -> None:
        # It would ask in the middle of the progress bar, and wait for an answer.
        mode = wandb.setup().settings.mode
        if mode not in WITHOUT_NETWORK and not wandb.login(prompt=False, verify=False):
            raise PermissionError("there is no key; `wandb login`, or set WANDB_MODE=offline")
        run_id = run.description["id"]
        self.is_new = not any((run.path / "wandb").glob(f"*run-*-{run_id}"))
        self._run = wandb.init(
            dir=run.path,
            id=run_id,
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
        """Write what sums the run up, and wait until everything is written or sent."""
        self._run.summary.update(dict(values))
        self._run.finish()

    def stop(self) -> None:
        """Mark the run as one that failed; it can go on all the same."""
        self._run.finish(exit_code=1)
