"""Which trackers a run is followed in."""

from typing import Annotated

from pydantic import AfterValidator

from fedkd_flwr.trackers.registry import TRACKERS
from strategies.core.settings_groups import NO_EFFECT_ON_RESULTS, SettingsGroup, Words, some_of


class TrackerSettings(SettingsGroup):
    """Trackers of experiments.

    Attributes
    ----------
    tracker : tuple of str
        What the server writes the rounds to besides the run directory, some of ``tensorboard``,
        ``wandb`` and ``mlflow``, separated by commas; empty for none. Each is an extra of that
        name.
    tracker_clients : bool
        Whether trackers get each client's numbers too.
    """

    tracker: Annotated[Words, AfterValidator(some_of(TRACKERS)), NO_EFFECT_ON_RESULTS] = ()
    tracker_clients: Annotated[bool, NO_EFFECT_ON_RESULTS] = False
