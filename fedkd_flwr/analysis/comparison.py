"""Runs on the same splits side by side: mean ± std over seeds, and who is better than `local`.

Runs of one method with the same settings form a group, whose members differ in seed. A run is
compared with the run of `local`, or of another reference, that has the same seed, client by
client: equal seeds have equal splits. What cannot be compared is refused, and the notes say what
is missing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import pandas as pd

from fedkd_flwr.analysis.columns import REFERENCE
from fedkd_flwr.analysis.effects import (
    basis_of,
    effects_of_pairs,
    effects_on_clients,
    verdicts,
    verdicts_on_new_clients,
    with_effects,
)
from fedkd_flwr.analysis.groups import Groups, at_best_models, each_run, grouped
from fedkd_flwr.analysis.harm import notes_on_harm, with_harm
from fedkd_flwr.analysis.notes import notes_on_evaluations, notes_on_groups, notes_on_provenance
from fedkd_flwr.analysis.reference_runs import References, reading_order
from fedkd_flwr.analysis.rendering import in_latex, in_markdown, in_short, rendered
from fedkd_flwr.analysis.results import client_results, means_over_seeds, run_results
from fedkd_flwr.analysis.safeguard_criterion import notes_on_safeguards
from fedkd_flwr.analysis.settings import (
    IncomparableRunsError,
    check_same_data,
    notes_on_code,
    notes_on_content,
)
from fedkd_flwr.analysis.significance import FEWEST_SEEDS, Effect
from fedkd_flwr.config import ConfigError
from fedkd_flwr.runs import (
    DamagedRunError,
    Run,
    RunDirectoryError,
    absolute,
    failures_in_words,
    load_run,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Runs side by side.

    Attributes
    ----------
    groups : dict of str to list of Run
        Finished runs by label, in the order of `reading_order`; the runs of a label differ in
        seed alone.
    results : DataFrame
        One row per run, as `fedkd_flwr.analysis.results.run_results` returns it.
    clients : DataFrame
        One row per run and client at the last evaluated round, as
        `fedkd_flwr.analysis.results.client_results` returns it.
    table : DataFrame
        One row a label, as `fedkd_flwr.analysis.results.means_over_seeds` returns it.
    verdicts : list of str
        Of each method, whether it is better or worse than the reference or not shown to differ, or
        why it has no verdict; and the same for new clients.
    notes : list of str
        What a reader of the table has to know: how verdicts are reached, runs left out, seeds
        without the reference, ….
    references : References
        What each run is compared with.
    effects : dict of str to Effect
        Mean gain over the reference by label, with interval, p value and outcome.
    limits : list of str
        Those of the notes that limit what the table says: runs that are damaged, unfinished or
        repeated and not in it, runs on other data, clients that failed, and clients without an
        evaluation.
    """

    groups: dict[str, list[Run]]
    results: pd.DataFrame
    clients: pd.DataFrame
    table: pd.DataFrame
    verdicts: list[str]
    notes: list[str]
    references: References
    effects: dict[str, Effect]
    limits: list[str]

    @property
    def against(self) -> str:
        """The method, or one of its settings, that every run is compared with."""
        return self.references.against

    @cached_property
    def pairs(self) -> dict[tuple[str, str], Effect]:
        """The effect of each method over each other one; see `effects_of_pairs`."""
        return effects_of_pairs(
            self.clients, list(self.groups), lambda *pair: not self.references.obstacles(*pair)
        )

    def rendered(self) -> pd.DataFrame:
        """Return the table as text, under the headings that a reader sees."""
        return rendered(self.table, self.against)

    def to_markdown(self) -> str:
        """Return the table, the verdicts and the notes in Markdown."""
        return in_markdown(self.rendered(), [*self.verdicts, *self.notes])

    def __repr__(self) -> str:
        """Return the table and the notes."""
        return self.to_markdown()

    def _repr_html_(self) -> str:
        """Return a table of six columns for notebooks, and the most important remarks."""
        shown = ("accuracy", "gain", "verdict", "gradient_steps", "bytes")
        table = in_short(self.table, shown, self.against).to_html(index=False, border=0)
        remarks = (*self.remarks, f"`.table` has all columns, `.notes` {len(self.notes)} notes.")
        return f"{table}<ul>{''.join(f'<li>{escape(remark)}</li>' for remark in remarks)}</ul>"

    @property
    def remarks(self) -> list[str]:
        """What a reader of a short table has to know: basis of verdicts, reference, and limits."""
        needed = f"A verdict needs at least {FEWEST_SEEDS} seeds with a run of {self.against}."
        return [(basis_of(self.effects) or [needed])[0], *self.references.choices, *self.limits]

    @cached_property
    def per_seed(self) -> pd.DataFrame:
        """The `results` with each run's mean ``gain`` over the reference."""
        gains = self.clients.groupby(["method", "seed"])["gain"].mean()
        return self.results.join(gains, on=["method", "seed"])

    def plot(self) -> "Figure":
        """Draw each method's gain over the reference by seed, with its interval.

        Without runs of the reference, draw accuracy over rounds.
        """
        has_gains = self.clients["gain"].notna().any()
        name = "plot_mean_gain" if has_gains else "plot_accuracy_over_rounds"
        figure: Figure = resolve_name(f"fedkd_flwr.plots:{name}")(self)
        return figure

    def report(self, path: str | Path) -> Path:
        """Write a web page with verdicts, table and figures, which works offline."""
        written: Path = resolve_name("fedkd_flwr.report:write_report")(self, path)
        return written

    def to_latex(self) -> str:
        """Return the table in LaTeX for the package booktabs, the remarks as comments."""
        return in_latex(self.rendered(), [*self.verdicts, *self.notes])

    def to_csv(self) -> str:
        """Return the table as CSV with all digits; the notes are not part of it."""
        return self.table.to_csv()


def compare(
    runs: str | Path | Run | Iterable[str | Path | Run],
    against: str = REFERENCE,
    *,
    best_evaluation: bool = False,
    by_code: bool = False,
    allow_code: str | Iterable[str] = (),
) -> Comparison:
    """Put runs on the same splits side by side.

    Parameters
    ----------
    runs : path, Run, or an iterable of these
        Run directories, folders that hold some, or opened runs.
    against : str
        What every method is compared with: a method, or the label of one of its settings.
    best_evaluation : bool
        Show the model with the best validation accuracy: the clients' own, as received, or after
        local training. Otherwise their own.
    by_code : bool
        Show each version of own code in a row of its own; otherwise the version of the latest run.
    allow_code : str or iterable of str
        Code that the runs' configs may name, see `fedkd_flwr.load_run`. Tables need none; figures
        and reports rebuild the clients' data.

    Returns
    -------
    Comparison
        With the table, the notes, and what figures are drawn from.

    Raises
    ------
    IncomparableRunsError
        If the runs have different splits or public sets, or none is finished.
    ConfigError
        If no run is of the reference that was asked for.
    RunDirectoryError
        If a path holds no run, or a run that was named itself is damaged.

    Examples
    --------
    >>> compared = fedkd_flwr.compare(["runs/first", "runs/alone"])
    >>> sorted(compared.table.index)
    ['kt-pfl', 'local']
    """
    opened, damaged = load_runs([runs] if isinstance(runs, str | Path | Run) else runs, allow_code)
    finished = [run for run in opened if run.finished]
    if not finished:
        reason = f"None of the {len(opened)} runs is finished, so there is nothing to compare."
        raise IncomparableRunsError(" ".join([reason, *damaged]))
    check_same_data(finished)
    groups, repeated = grouped(finished, by_code)
    shown = [run for _, run in each_run(groups)]
    groups = at_best_models(groups) if best_evaluation else groups
    references = References(groups, against)
    if against != REFERENCE and not references.labels:
        raise ConfigError(
            f"There is no finished run of {against} to compare with; there are runs of "
            f"{', '.join(groups)}."
        )
    clients = client_results(groups, references)
    results = run_results(groups, clients, references)
    table = means_over_seeds(results)
    order, ranked = reading_order(table, groups)
    effects = effects_on_clients(clients, order)
    table = with_harm(with_effects(table.loc[order], effects), clients)
    missing = [*_notes_on_unfinished(opened), *repeated, *_notes_on_failures(groups)]
    differing = [*notes_on_content(shown), *notes_on_code(shown)]
    return Comparison(
        groups={label: groups[label] for label in table.index},
        results=results,
        clients=clients,
        table=table,
        verdicts=[
            *verdicts(effects, clients, against),
            *references.refusals.values(),
            *verdicts_on_new_clients(groups, table.index, references),
        ],
        notes=[
            *basis_of(effects),
            *notes_on_harm(clients),
            *notes_on_safeguards(clients),
            *damaged,
            *differing,
            *missing,
            *notes_on_groups(groups, clients, references),
            *notes_on_provenance(shown),
            *ranked,
        ],
        references=references,
        effects=effects,
        limits=[
            *damaged,
            *missing,
            *references.refusals.values(),
            *differing,
            *notes_on_evaluations(groups),
        ],
    )


def _notes_on_failures(groups: Groups) -> list[str]:
    told = {label: failures_in_words(runs) for label, runs in groups.items()}
    return [f"In {label} {failures}." for label, failures in told.items() if failures]


def _notes_on_unfinished(runs: Iterable[Run]) -> list[str]:
    return [
        f"{run.path.name} is unfinished ({len(run.rounds)} of {run.config['num-server-rounds']} "
        "rounds) and left out."
        for run in runs
        if not run.finished
    ]


def load_runs(
    runs: Iterable[str | Path | Run], allow_code: str | Iterable[str] = ()
) -> tuple[list[Run], list[str]]:
    """Load runs, and the runs inside folders that are no run directories; each run once.

    A damaged run inside a folder is skipped, and the others are loaded. Return also a sentence for
    each skipped run. Raises `RunDirectoryError` if a path has no runs, if a run directory named by
    its own path is damaged, or if no run is left.
    """
    opened: dict[Path, Run] = {}
    notes: dict[Path, str] = {}
    for item in runs:
        if isinstance(item, Run):
            item.check()
            opened.setdefault(item.path, item)
            continue
        folder = absolute(item)
        inside = sorted(file.parent for file in folder.glob("*/config.json"))
        if (folder / "config.json").exists() or not inside:
            _require_run(folder)
            run = load_run(folder, allow_code)
            opened.setdefault(run.path, run)
            continue
        for path in inside:
            try:
                run = load_run(path, allow_code)
            except DamagedRunError as error:
                notes[path.resolve()] = f"{path.name} is left out: {error}"
            else:
                opened.setdefault(run.path, run)
    if not opened:
        raise RunDirectoryError(" ".join(["There are no runs to compare.", *notes.values()]))
    return list(opened.values()), list(notes.values())


def _require_run(path: Path) -> None:
    """Refuse a path that is no folder, and a folder of folders of runs, by what they are."""
    if (path / "config.json").exists():
        return
    if not path.exists():
        raise RunDirectoryError(f"{path} holds no run: there is no such folder.")
    if not path.is_dir():
        raise RunDirectoryError(
            f"{path} holds no run: it is a file. Type the folder of a run, or one that holds runs."
        )
    deeper = min(path.glob("*/*/config.json"), default=None)
    if deeper:
        raise RunDirectoryError(
            f"{path} holds no run, but folders of runs. Type one of these, such as "
            f"{deeper.parent.parent}; they may be on different data."
        )
