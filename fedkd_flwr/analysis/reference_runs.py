"""Which run each run of a comparison is compared with: by default one of `local`."""

from fedkd_flwr.analysis.columns import REFERENCE
from fedkd_flwr.analysis.groups import Groups
from fedkd_flwr.analysis.ranking import best_first
from fedkd_flwr.analysis.settings import varied_settings
from fedkd_flwr.runs import Run


class References:
    """The runs that the others of a comparison are compared with.

    Of several settings of the reference, a method is compared with the one that shares most
    settings with it, in every seed; of several such, with the best on validation data. Only
    settings that have a common seed with the method count. Its other seeds have no reference: a
    gain over several settings would be a gain over none of them. Runs of the reference with a
    higher ``batch-order`` than others are compared like a method: they show how much chance
    changes. The reference (`against`) is a method, or the label of one of its settings.
    """

    def __init__(self, groups: Groups, against: str = REFERENCE) -> None:
        self.against = against
        own = [against] if against in groups else _of_method(against, groups)
        self._by_seed = {
            name: {run.config["seed"]: run for run in groups[name]}
            for name in best_first(own, groups)[0]
        }
        self._preferred = {
            label: self._most_similar(runs, groups)
            for label, runs in groups.items()
            if label not in self._by_seed
        }

    def _most_similar(self, runs: list[Run], groups: Groups) -> str | None:
        """Return the label with most settings of some runs, among those with one of their seeds."""
        seeds = {run.config["seed"] for run in runs}
        common = [name for name, own in self._by_seed.items() if seeds & own.keys()]
        return min(
            common,
            key=lambda name: len(varied_settings([runs[0], groups[name][0]])),
            default=None,
        )

    @property
    def labels(self) -> list[str]:
        """Labels of the reference, several where it has several settings."""
        return list(self._by_seed)

    def __contains__(self, label: str) -> bool:
        """Return whether a label is the reference, or one of its settings."""
        return label in self._by_seed

    def setting_for(self, label: str) -> str | None:
        """Return the label that a method is compared with; None if they have no common seed."""
        return self._preferred.get(label)

    def name_of(self, label: str, seed: int) -> str | None:
        """Return the label that a run is compared with.

        None for a run of the reference, and where the setting that it is compared with lacks the
        seed.
        """
        name = self.setting_for(label)
        return name if name and seed in self._by_seed[name] else None

    def of(self, label: str, seed: int) -> Run | None:
        """Return the run that a run is compared with; see `name_of`."""
        name = self.name_of(label, seed)
        return self._by_seed[name][seed] if name else None


def _of_method(method: str, groups: Groups) -> list[str]:
    """Return the labels of a method's settings, those with the lowest batch order."""
    orders = {
        label: runs[0].config.get("batch-order", 0)
        for label, runs in groups.items()
        if runs[0].config["strategy"] == method
    }
    return [label for label, order in orders.items() if order == min(orders.values())]
