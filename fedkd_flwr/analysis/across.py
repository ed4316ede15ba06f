"""Methods across several comparisons: wins, Wilcoxon's test, ranks, Friedman's test.

Each comparison is one folder of runs and gives one number per method, or one per method and seed:
its mean gain over the reference, matched by client. Folders with a common run are refused. A method
with several settings enters with the first in reading order, and the reference with its lowest
``batch-order``.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from scipy import stats

from fedkd_flwr.analysis.columns import MISSING, REFERENCE, points
from fedkd_flwr.analysis.comparison import Comparison, compare
from fedkd_flwr.analysis.effects import FEWEST_METHODS
from fedkd_flwr.analysis.groups import each_run, labels_by_method
from fedkd_flwr.analysis.reference_runs import References
from fedkd_flwr.analysis.rendering import in_markdown
from fedkd_flwr.analysis.significance import LEVEL, holm
from fedkd_flwr.config import ConfigError
from fedkd_flwr.runs import absolute

FEWEST_UNITS = 2


@dataclass(frozen=True)
class Across:
    """Methods across comparisons.

    Attributes
    ----------
    gains : DataFrame
        Mean gain over the reference, part of 1: one row per unit, a comparison or a seed of one;
        one column per method that all have.
    table : DataFrame
        One row per method, the best mean rank first: ``rank``, ``gain``, the mean over
        units of what it gains over the reference, ``wins``, ``p_value`` of Wilcoxon's
        signed-rank test and ``p_holm``.
    friedman : float
        P value that all methods have equal ranks; NaN below three methods.
    against : str
        The reference.
    units : str
        What the units are, such as ``8 comparisons``.
    limits : list of str
        Notes on methods that lack seeds, and those of the comparisons on what limits them.
    """

    gains: pd.DataFrame
    table: pd.DataFrame
    friedman: float
    against: str
    units: str
    limits: list[str]

    def to_markdown(self) -> str:
        """Return the table and what the tests show, in Markdown."""
        tables = len(self.gains)
        rows = []
        for label, row in self.table.iterrows():
            own = [points(row["gain"]), f"{row['wins']:.0f} of {tables}", f"{row['p_holm']:.2g}"]
            over = [MISSING] * len(own) if label == self.against else own
            rows.append([str(label), f"{row['rank']:.2f}", *over])
        headings = ["method", "mean rank", f"over {self.against}, points", "wins", "p, Holm"]
        return in_markdown(pd.DataFrame(rows, columns=headings), self.notes)

    @property
    def notes(self) -> list[str]:
        """What is left out, what the tests are, and what Friedman's test shows."""
        notes = [
            *self.limits,
            f"Wins and ranks are over {self.units}. P values are those of Wilcoxon's signed-rank "
            "test over these units with Holm's correction. All tests take units as independent; "
            "seeds of one comparison share their images.",
        ]
        if math.isnan(self.friedman):
            reason = "is undefined where all methods tie"
            if len(self.table) < FEWEST_METHODS:
                reason = f"needs at least {FEWEST_METHODS} methods"
            return [*notes, f"Friedman's test {reason}."]
        shown = "differ" if self.friedman <= LEVEL else "are not shown to differ"
        return [*notes, f"The ranks {shown}: Friedman's test has p = {self.friedman:.2g}."]


def compare_across(
    folders: Sequence[str | Path], against: str = REFERENCE, per_seed: bool = False
) -> Across:
    """Compare methods over several folders of runs, each on its own data.

    `per_seed` makes each seed of a folder a unit of its own, instead of the mean over its seeds.
    Raises `ConfigError` if there are fewer than two units, no method besides the reference is in
    all, or a run is in two of the folders.
    """
    comparisons = {name: compare(folder) for name, folder in by_short_name(folders).items()}
    return across_of(comparisons, against, per_seed)


def across_of(
    comparisons: dict[str, Comparison], against: str = REFERENCE, per_seed: bool = False
) -> Across:
    """Return methods across comparisons; see `compare_across`."""
    _refuse_copies(comparisons)
    by_seed = {name: _by_seed(comparison, against) for name, comparison in comparisons.items()}
    # A mean over other seeds than the reference's would compare different splits.
    means = {name: own.mean(skipna=False).to_frame().T for name, own in by_seed.items()}
    gains = pd.concat(by_seed if per_seed else means).dropna(axis="columns")
    # Gains that differ by rounding alone are ties.
    gains = gains.round(9)
    lacking = [*_notes_on_missing_methods(by_seed), *_notes_on_missing_seeds(by_seed)]
    if len(gains) < FEWEST_UNITS:
        raise ConfigError(
            "--across needs at least two folders of runs, one per comparison; or --per-seed and at "
            "least two seeds."
        )
    if against not in gains or gains.shape[1] < 2:
        reason = (
            f"--across needs {against} and at least one other method in every folder; the methods "
            f"in all of them, with all seeds, are: {', '.join(map(str, gains)) or 'none'}."
        )
        raise ConfigError(" ".join([reason, *lacking]))
    others = [label for label in gains if label != against]
    p_values = [
        float(stats.wilcoxon(gains[label]).pvalue) if gains[label].any() else 1.0
        for label in others
    ]
    table = pd.DataFrame(
        {
            "rank": gains.rank(axis=1, ascending=False).mean(),
            "gain": gains.mean(),
            "wins": (gains > 0).sum(),
            "p_value": pd.Series(p_values, index=others),
            "p_holm": pd.Series(holm(p_values), index=others),
        }
    ).sort_values("rank", kind="stable")
    units = f"{len(comparisons)} comparison{'s' if len(comparisons) > 1 else ''}"
    if per_seed:
        units = f"{len(gains)} seeds of {units}"
    limits = [f"{name}: {note}" for name, own in comparisons.items() for note in own.limits]
    return Across(gains, table, _friedman(gains), against, units, [*lacking, *limits])


def by_short_name(folders: Iterable[str | Path]) -> dict[str, Path]:
    """Return folders by their last names, with as many parents as tell them apart.

    A folder that is given twice counts once.
    """
    paths = list(dict.fromkeys(absolute(folder) for folder in folders))
    parts, named = 0, dict[str, Path]()
    while len(named) < len(paths):
        parts += 1
        named = {str(Path(*path.parts[-parts:])): path for path in paths}
    return named


def _refuse_copies(comparisons: Mapping[str, Comparison]) -> None:
    """Refuse a run that is in two comparisons: a copy is no further evidence."""
    found: dict[str, str] = {}
    for name, comparison in comparisons.items():
        for label, run in each_run(comparison.groups):
            before = found.setdefault(run.run_id, name) if run.run_id else name
            if before != name:
                raise ConfigError(
                    f"{before} and {name} hold the same run, {label} with seed "
                    f"{run.config['seed']} (id {run.run_id[:8]}): a copy is no further comparison, "
                    "so leave out one of the folders."
                )


def _by_seed(comparison: Comparison, against: str) -> pd.DataFrame:
    """Return by seed the mean gain of the methods that can be compared, of the first setting."""
    labels = labels_by_method(comparison.groups)
    references = References(comparison.groups, against)
    if not references.labels:
        return pd.DataFrame(columns=list(labels), dtype=float)
    reference = references.labels[0]
    others = [own[0] for name, own in labels.items() if name != against]
    comparable = [
        label
        for label in others
        if label not in references and not references.obstacles(label, reference)
    ]
    accuracies = comparison.clients.pivot(
        index=["seed", "partition_id"], columns="method", values="accuracy"
    )
    names = {own[0]: name for name, own in labels.items()}
    gains = accuracies[[reference, *comparable]].sub(accuracies[reference], axis=0)
    return gains.groupby("seed").mean().rename(columns={**names, reference: against})


def _notes_on_missing_methods(by_seed: dict[str, pd.DataFrame]) -> list[str]:
    """Name the methods that are not in every comparison."""
    everywhere = set.intersection(*(set(own) for own in by_seed.values()))
    methods = dict.fromkeys(str(label) for own in by_seed.values() for label in own)
    missing = [label for label in methods if label not in everywhere]
    if not missing:
        return []
    return [f"Methods are left out that are not in every comparison: {', '.join(missing)}."]


def _notes_on_missing_seeds(by_seed: dict[str, pd.DataFrame]) -> list[str]:
    """Name the methods that have some seeds of a comparison but not all, and the missing ones."""
    missing: dict[str, list[str]] = defaultdict(list)
    for name, own in by_seed.items():
        for label, is_missing in own.isna().items():
            if seeds := ", ".join(map(str, own.index[is_missing])):
                missing[str(label)].append(f"seed {seeds} of {name}")
    if not missing:
        return []
    listed = "; ".join(f"{label} ({', '.join(parts)})" for label, parts in missing.items())
    return [f"Methods are left out that lack results of a seed: {listed}."]


def _friedman(gains: pd.DataFrame) -> float:
    """Return the p value that all methods have equal ranks; NaN below three methods."""
    if gains.shape[1] < FEWEST_METHODS:
        return math.nan
    return float(stats.friedmanchisquare(*(gains[label] for label in gains)).pvalue)
