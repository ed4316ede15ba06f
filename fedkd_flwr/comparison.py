"""Runs on the same splits side by side: mean ± std over seeds, and who beats `local`.

Runs of one method with the same settings form a group, whose members differ in seed. A run is
held against the run of `local` with the same seed, client by client: equal seeds have equal
splits. What cannot be compared is refused, and what is missing is said in the notes.
"""

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedkd_flwr.config import DATA_KEYS, PLACE_KEYS, ConfigError, read_config
from fedkd_flwr.methods import METHODS
from fedkd_flwr.runs import Run, RunDirectoryError, load_run

REFERENCE = "local"
"""The method that the clients of every other have to beat."""

HEADINGS = {
    "seeds": "seeds",
    "accuracy": "accuracy, last round",
    "accuracy_chosen": "accuracy, validation round",
    "clients_std": "std over clients",
    "clients_worst": "worst client",
    "beats_local": "beat local",
    "numbers": "numbers",
    "bytes": "bytes",
    "seconds": "seconds",
}
"""Columns of a rendered table."""

MISSING = "-"
"""Stands for a number that there is not."""


class IncomparableRunsError(ConfigError):
    """Runs that cannot stand side by side; the message is one sentence for the user."""


@functools.cache
def _defaults() -> dict[str, Any]:
    return dict(read_config({}).flat())


def defining_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a run's numbers depend on.

    Parameters
    ----------
    config : mapping
        A flat run config; what it lacks has its default.

    Returns
    -------
    dict
        The common keys without `PLACE_KEYS`, and the method's own table.
    """
    method = METHODS.get(config["strategy"])
    own_table = method.strategy.settings_type.table if method else ""
    return {
        name: config.get(name, default)
        for name, default in _defaults().items()
        if name not in PLACE_KEYS and ("." not in name or name.partition(".")[0] == own_table)
    }


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Runs side by side.

    Attributes
    ----------
    groups : dict of str to list of Run
        Finished runs by label, best first; the runs of a label differ in seed alone.
    results : DataFrame
        One row a run: ``method``, ``seed``, ``accuracy``, ``accuracy_chosen``, ``clients_std``,
        ``clients_worst``, ``beats_local``, numbers and bytes each way, ``seconds``, ``path``.
    clients : DataFrame
        One row a run and client at the last evaluated round: ``method``, ``seed``,
        ``partition_id``, ``accuracy``, ``local_accuracy``, ``gain``.
    table : DataFrame
        One row a label: means over seeds, and the standard deviations ``accuracy_std`` and
        ``accuracy_chosen_std`` over seeds (n-1 in the denominator, NaN for one seed).
    verdicts : list of str
        Of each method, whether it beats `local`.
    notes : list of str
        What a reader of the table has to know: runs left out, seeds without `local`, ….
    """

    groups: dict[str, list[Run]]
    results: pd.DataFrame
    clients: pd.DataFrame
    table: pd.DataFrame
    verdicts: list[str]
    notes: list[str]

    def reference(self, run: Run) -> Run | None:
        """Return the run of `local` that a run is held against; see `reference_run`."""
        return reference_run(run, self.groups)

    def rendered(self) -> pd.DataFrame:
        """Return the table as text, under the headings that a reader sees."""
        return pd.DataFrame(
            [_rendered_row(str(label), row) for label, row in self.table.iterrows()],
            columns=["method", *HEADINGS.values()],
        )

    def to_markdown(self) -> str:
        """Return the table, the verdicts and the notes in Markdown."""
        rendered = self.rendered()
        lines = [
            list(rendered.columns),
            ["---", *["---:"] * len(HEADINGS)],
            *rendered.to_numpy().tolist(),
        ]
        table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
        remarks = "".join(f"- {remark}\n" for remark in [*self.verdicts, *self.notes])
        return f"{table}\n{remarks}" if remarks else table

    def __repr__(self) -> str:
        """Return the table and the notes, which say more than the parts."""
        return self.to_markdown()

    # Notebooks render what this returns.
    _repr_markdown_ = __repr__

    def to_latex(self) -> str:
        """Return the table in LaTeX for the package booktabs, the remarks as comments."""
        layout = "l" + "r" * len(HEADINGS)
        table = self.rendered().to_latex(index=False, escape=True, column_format=layout)
        remarks = "".join(f"% {remark}\n" for remark in [*self.verdicts, *self.notes])
        return remarks + table.replace("±", r"$\pm$")

    def to_csv(self) -> str:
        """Return the table as CSV with all digits; the notes are not part of it."""
        return self.table.to_csv()


def compare(runs: str | Path | Run | Iterable[str | Path | Run]) -> Comparison:
    """Put runs on the same splits side by side.

    Parameters
    ----------
    runs : path, Run, or an iterable of these
        Run directories, folders that hold some, or opened runs.

    Returns
    -------
    Comparison
        With the table, the notes, and what figures are drawn from.

    Raises
    ------
    IncomparableRunsError
        If the runs have different splits or public sets, or none is finished.
    RunDirectoryError
        If a path holds no run.
    """
    opened = open_runs([runs] if isinstance(runs, str | Path | Run) else runs)
    notes = [
        f"{run.path.name} is unfinished ({len(run.rounds)} of "
        f"{run.config['num-server-rounds']} rounds) and left out."
        for run in opened
        if not run.finished
    ]
    finished = [run for run in opened if run.finished]
    if not finished:
        raise IncomparableRunsError(
            f"None of the {len(opened)} runs is finished, so there is nothing to compare."
        )
    check_same_data(finished)
    groups = _grouped(finished, notes)
    clients = _client_results(groups)
    results = _run_results(groups, clients)
    table = _table(results)
    return Comparison(
        groups={label: groups[label] for label in table.index},
        results=results,
        clients=clients,
        table=table,
        verdicts=_verdicts(clients, table.index),
        notes=[*notes, *_notes(groups, clients)],
    )


def open_runs(runs: Iterable[str | Path | Run]) -> list[Run]:
    """Open runs, and the runs in folders that are none themselves; each run once.

    Raises
    ------
    RunDirectoryError
        If a path is no run and holds none.
    """
    opened: dict[Path, Run] = {}
    for item in runs:
        if isinstance(item, Run):
            opened.setdefault(item.path, item)
            continue
        folder = Path(item).expanduser()
        inside = sorted(file.parent for file in folder.glob("*/config.json"))
        is_run = (folder / "config.json").exists()
        for path in [folder] if is_run or not inside else inside:
            run = load_run(path)
            opened.setdefault(run.path, run)
    if not opened:
        raise RunDirectoryError("There are no runs to compare.")
    return list(opened.values())


def check_same_data(runs: Iterable[Run]) -> None:
    """Refuse runs on different splits or public sets.

    Raises
    ------
    IncomparableRunsError
        With the keys that differ and their values.
    """
    values: dict[str, set[str]] = {key: set() for key in DATA_KEYS}
    for run in runs:
        settings = defining_settings(run.config)
        if settings["public-dataset"] != "held-out":
            settings["held-out-size"] = 0
        for key in DATA_KEYS:
            values[key].add(str(settings[key]))
    # A run without a public set has the same splits as one whose public set is another data
    # set; a held-out set is taken from the clients' data.
    if "held-out" not in values["public-dataset"]:
        values["public-dataset"].discard("none")
    differing = [f"{key} ({', '.join(sorted(v))})" for key, v in values.items() if len(v) > 1]
    if differing:
        raise IncomparableRunsError(
            f"The runs are on different data and cannot be compared: {', '.join(differing)}."
        )


def _grouped(runs: list[Run], notes: list[str]) -> dict[str, list[Run]]:
    """Return the runs by label, one a seed, the seeds ascending."""
    by_strategy: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_strategy[run.config["strategy"]].append(run)
    groups: dict[str, dict[int, Run]] = defaultdict(dict)
    for strategy, members in by_strategy.items():
        varied = _varied(members)
        # Of runs that are alike, the last one stands.
        for run in sorted(members, key=lambda run: str(run.description.get("started"))):
            settings = defining_settings(run.config)
            named = [f"{name.rpartition('.')[2]}={settings[name]}" for name in varied]
            label = f"{strategy} ({', '.join(named)})" if named else strategy
            before = groups[label].get(run.config["seed"])
            if before:
                notes.append(f"{before.path.name} is left out: {run.path.name} repeats it, later.")
            groups[label][run.config["seed"]] = run
    return {label: [runs[seed] for seed in sorted(runs)] for label, runs in groups.items()}


def _varied(runs: Iterable[Run]) -> list[str]:
    """Return the settings, other than data and seed, that not all runs share."""
    values: dict[str, set[Any]] = defaultdict(set)
    for run in runs:
        for name, value in defining_settings(run.config).items():
            values[name].add(value)
    known = {*DATA_KEYS, "seed", "strategy"}
    return [name for name, found in values.items() if len(found) > 1 and name not in known]


def reference_run(run: Run, groups: Mapping[str, list[Run]]) -> Run | None:
    """Return the run of `local` that a run is held against.

    Parameters
    ----------
    run : Run
        A run of another method.
    groups : mapping of str to list of Run
        Of a `Comparison`.

    Returns
    -------
    Run or None
        Of those with the same seed, the one with the most settings in common.
    """
    candidates = [
        other
        for runs in groups.values()
        for other in runs
        if other.config["strategy"] == REFERENCE and other.config["seed"] == run.config["seed"]
    ]
    return min(candidates, key=lambda other: len(_varied([run, other])), default=None)


def client_accuracies(run: Run) -> pd.Series:
    """Return the clients' accuracies at the last evaluated round, by partition-id."""
    clients = run.clients
    if "accuracy" not in clients or not (run.summary or {}).get("last_round"):
        return pd.Series(dtype=float, name="accuracy")
    last_round = (run.summary or {})["last_round"]["round"]
    last = clients[(clients["round"] == last_round) & clients["accuracy"].notna()]
    accuracies: pd.Series = last.set_index("partition_id")["accuracy"].sort_index()
    return accuracies


def _client_results(groups: Mapping[str, list[Run]]) -> pd.DataFrame:
    frames = []
    for label, runs in groups.items():
        for run in runs:
            accuracies = client_accuracies(run)
            frame = pd.DataFrame({"accuracy": accuracies})
            frame.insert(0, "method", label)
            frame.insert(1, "seed", run.config["seed"])
            is_reference = run.config["strategy"] == REFERENCE
            reference = None if is_reference else reference_run(run, groups)
            local = client_accuracies(reference) if reference else pd.Series(dtype=float)
            frame["local_accuracy"] = local.reindex(accuracies.index)
            frame["gain"] = frame["accuracy"] - frame["local_accuracy"]
            frames.append(frame.rename_axis("partition_id").reset_index())
    together = pd.concat(frames, ignore_index=True)
    return together[["method", "seed", "partition_id", "accuracy", "local_accuracy", "gain"]]


def _run_results(groups: Mapping[str, list[Run]], clients: pd.DataFrame) -> pd.DataFrame:
    compared = clients[clients["gain"].notna()]
    shares = (compared["gain"] > 0).groupby([compared["method"], compared["seed"]]).mean()
    rows = []
    for label, runs in groups.items():
        for run in runs:
            summary = run.summary or {}
            last, chosen = summary["last_round"] or {}, summary["validation_round"] or {}
            rows.append(
                {
                    "method": label,
                    "seed": run.config["seed"],
                    "accuracy": last.get("accuracy_mean"),
                    "accuracy_chosen": chosen.get("accuracy_mean"),
                    "clients_std": last.get("accuracy_std"),
                    "clients_worst": last.get("accuracy_min"),
                    "beats_local": shares.get((label, run.config["seed"])),
                    "numbers": summary["numbers_up"] + summary["numbers_down"],
                    "bytes": summary["bytes_up"] + summary["bytes_down"],
                    "seconds": summary["seconds"],
                    "path": str(run.path),
                }
            )
    results = pd.DataFrame(rows)
    numeric = [name for name in results.columns if name not in ("method", "seed", "path")]
    return results.astype(dict.fromkeys(numeric, float))


def _table(results: pd.DataFrame) -> pd.DataFrame:
    by_method = results.groupby("method", sort=False)
    means = by_method.mean(numeric_only=True).drop(columns="seed")
    means.insert(0, "seeds", by_method.size())
    spreads = by_method[["accuracy", "accuracy_chosen"]].std().add_suffix("_std")
    for name in spreads:
        before = means.columns.get_loc(str(name).removesuffix("_std"))
        assert isinstance(before, int)
        means.insert(before + 1, str(name), spreads[name])
    return means.sort_values("accuracy", ascending=False, kind="stable")


def _notes(groups: Mapping[str, list[Run]], clients: pd.DataFrame) -> list[str]:
    """Return what is uneven among the runs that are compared."""
    notes = []
    seeds = {label: [run.config["seed"] for run in runs] for label, runs in groups.items()}
    if len({tuple(found) for found in seeds.values()}) > 1:
        listed = "; ".join(f"{label} {_listed(found)}" for label, found in seeds.items())
        notes.append(f"The methods have different seeds, and means are over each one's: {listed}.")
    notes += _notes_on_reference(groups, clients)
    by_strategy: dict[str, list[Run]] = defaultdict(list)
    for runs in groups.values():
        by_strategy[runs[0].config["strategy"]] += runs
    within = {name for runs in by_strategy.values() for name in _varied(runs)}
    for name in _varied(run for runs in groups.values() for run in runs):
        if "." in name or name in within:
            continue
        methods: dict[Any, list[str]] = defaultdict(list)
        for strategy, runs in by_strategy.items():
            methods[defining_settings(runs[0].config)[name]].append(strategy)
        listed = "; ".join(f"{value} ({_listed(found)})" for value, found in methods.items())
        notes.append(f"The methods do not share {name}: {listed}.")
    return notes


def _notes_on_reference(groups: Mapping[str, list[Run]], clients: pd.DataFrame) -> list[str]:
    others = [
        (label, run)
        for label, runs in groups.items()
        for run in runs
        if run.config["strategy"] != REFERENCE
    ]
    lacking = [(label, run) for label, run in others if reference_run(run, groups) is None]
    if lacking and len(lacking) == len(others):
        return [f"There is no run of {REFERENCE} with these seeds to hold the clients against."]
    notes = []
    if lacking:
        listed = _listed(f"{label} seed {run.config['seed']}" for label, run in lacking)
        notes.append(f"Without a run of {REFERENCE} of the same seed: {listed}.")
    for label, run in others:
        own = clients[(clients["method"] == label) & (clients["seed"] == run.config["seed"])]
        matched = int(own["gain"].notna().sum())
        if (label, run) not in lacking and matched < run.config["num-clients"]:
            notes.append(
                f"{label} seed {run.config['seed']} is held against {REFERENCE} on {matched} of "
                f"{run.config['num-clients']} clients: the others lack an evaluation."
            )
    return notes


def _verdicts(clients: pd.DataFrame, labels: Iterable[Any]) -> list[str]:
    """Say of every method whether it beats `local`, by its clients' mean gain in each seed."""
    gains = clients[clients["method"] != REFERENCE].dropna(subset="gain")
    by_seed = gains.groupby(["method", "seed"])["gain"].mean() * 100
    known = set(by_seed.index.get_level_values("method"))
    return [_verdict(str(label), by_seed[label]) for label in labels if label in known]


def _verdict(label: str, gains: pd.Series) -> str:
    """Return one sentence about the mean gains of a method, in points, one a seed."""
    above, seeds = int((gains > 1e-9).sum()), len(gains)
    mean = round(gains.mean(), 1) + 0.0  # no minus before a zero
    if seeds == 1:
        place = "above" if above else "not above"
        return f"{label} is {place} {REFERENCE} on its one seed: {mean:+.1f} points."
    unsure = "does not reliably beat" if mean > 0 else "does not beat"
    beats = "beats" if above == seeds else unsure
    counted = f"above it in {above} of {seeds} seeds"
    return f"{label} {beats} {REFERENCE}: {mean:+.1f} points on average, {counted}."


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


def _rendered_row(label: str, row: pd.Series) -> list[str]:
    return [
        label,
        f"{row['seeds']:.0f}",
        _with_spread(row["accuracy"], row["accuracy_std"]),
        _with_spread(row["accuracy_chosen"], row["accuracy_chosen_std"]),
        _number(row["clients_std"], ".4f"),
        _number(row["clients_worst"], ".4f"),
        _number(row["beats_local"], ".0%"),
        _number(row["numbers"], ",.0f"),
        MISSING if pd.isna(row["bytes"]) else in_bytes(row["bytes"]),
        _number(row["seconds"], ".1f"),
    ]


def _number(value: float, layout: str) -> str:
    return MISSING if pd.isna(value) else format(value, layout)


def _with_spread(mean: float, spread: float) -> str:
    return _number(mean, ".4f") + ("" if pd.isna(spread) else f" ± {spread:.4f}")


def in_bytes(size: float) -> str:
    """Return a number of bytes in the unit that suits it, such as ``12.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"
