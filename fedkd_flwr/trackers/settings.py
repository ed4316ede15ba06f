"""Which trackers a run is followed in."""

from typing import Annotated, Any

from pydantic import field_validator

from fedkd_flwr.trackers.catalogue import TRACKERS
from strategies.core.slices import PLACE, Slice, one_of, words


class TrackerSettings(Slice):
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

    tracker: Annotated[tuple[str, ...], PLACE] = ()
    tracker_clients: Annotated[bool, PLACE] = False

    @field_validator("tracker", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return words(value)

    @field_validator("tracker")
    @classmethod
    def _known_trackers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one_of(name, TRACKERS) for name in value))
