"""Which run of `local` each run of a comparison is held against."""

from collections.abc import Mapping

from fedkd_flwr.analysis.ranking import best_first
from fedkd_flwr.analysis.settings import varied_settings
from fedkd_flwr.runs import Run

REFERENCE = "local"
"""The method that the clients of every other have to beat."""


class References:
    """The runs of `local` that the others of a comparison are held against.

    Of several settings of `local` a method is held against the one with the most settings in
    common with its own, in every seed; of several such, against the best on validation data.

    Parameters
    ----------
    groups : mapping of str to list of Run
        Finished runs by label.
    """

    def __init__(self, groups: Mapping[str, list[Run]]) -> None:
        own = [name for name, runs in groups.items() if runs[0].config["strategy"] == REFERENCE]
        self._by_seed = {
            name: {run.config["seed"]: run for run in groups[name]}
            for name in best_first(own, groups)[0]
        }
        self._preferred = {
            label: sorted(
                self._by_seed, key=lambda name: len(varied_settings([runs[0], groups[name][0]]))
            )
            for label, runs in groups.items()
            if label not in self._by_seed
        }

    def name_of(self, label: str, seed: int) -> str | None:
        """Return the label of the setting of `local` that a run is held against.

        Parameters
        ----------
        label : str
            The run's.
        seed : int
            The run's.

        Returns
        -------
        str or None
            None for a run of `local`, and where none has this seed.
        """
        preferred = self._preferred.get(label, ())
        return next((name for name in preferred if seed in self._by_seed[name]), None)

    def of(self, label: str, seed: int) -> Run | None:
        """Return the run that a run is held against; see `name_of`."""
        name = self.name_of(label, seed)
        return self._by_seed[name][seed] if name else None
