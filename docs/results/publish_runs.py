"""Turn finished runs on the same splits into what is committed: a table and a small JSON file.

    python docs/results/publish_runs.py RUNS OUTPUT [FIGURES]

writes OUTPUT.md (the table and verdicts of `fedkd compare`, and verdicts against FedAvg where it is
there) and OUTPUT.json: what the runs have in common, and of each run its own settings, mean
accuracy by round, accuracy of every client after the last round, and of every client that came
after the training, traffic and seconds. FIGURES is a TOML file with a paper's figures, which stand
beside ours in two more columns.
"""

import json
import sys
from pathlib import Path
from typing import Any

import fedkd_flwr
from fedkd_flwr import Run
from fedkd_flwr.analysis.paper import beside_paper, read_figures
from fedkd_flwr.analysis.rendering import in_markdown
from fedkd_flwr.analysis.results import new_client_accuracies
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.analysis.verdicts import verdicts_against

SECOND_REFERENCE = "fedavg"
"""What methods are held against beside `local`."""


def published(run: Run, shared: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of one run.

    Parameters
    ----------
    run : Run
        A finished run.
    shared : dict
        Settings that all runs have, which are left out here.
    """
    settings = defining_settings(run.config)
    own = {name: value for name, value in settings.items() if name not in shared}
    rounds = run.rounds.dropna(subset="accuracy_mean")
    clients = run.clients.dropna(subset="accuracy")
    last = clients[clients["round"] == clients["round"].max()].sort_values("partition_id")
    columns = ["numbers_up", "numbers_down", "bytes_up", "bytes_down"]
    result = {
        "settings": own,
        "rounds": rounds["round"].tolist(),
        "accuracy_mean": rounds["accuracy_mean"].round(4).tolist(),
        "accuracy_of_clients": last["accuracy"].round(4).tolist(),
        **{column: int(run.rounds[column].sum()) for column in columns},
        "seconds": round(run.summary["seconds"], 1),
    }
    new = new_client_accuracies(run)
    if len(new):
        result["accuracy_of_new_clients"] = {n: round(value, 4) for n, value in new.items()}
        for column in ("bytes_up", "bytes_down"):
            result[f"new_{column}"] = run.summary["new_clients"][column]
    if "epsilon" in run.rounds:
        result["epsilon"] = round(float(run.rounds["epsilon"].iloc[-1]), 3)
    return result


def publish(folder: Path, output: Path, figures: Path | None = None) -> None:
    """Write the table and the JSON file of a folder of runs.

    Parameters
    ----------
    folder : Path
        Runs on the same splits.
    output : Path
        The files without their suffix.
    figures : Path, optional
        A paper's figures.
    """
    comparison = fedkd_flwr.compare(folder)
    if figures:
        comparison = beside_paper(comparison, read_figures(figures))
    remarks = [*comparison.verdicts, *comparison.notes]
    if SECOND_REFERENCE in comparison.groups:
        ordered = comparison.results.set_index("method").loc[list(comparison.groups)].reset_index()
        remarks += verdicts_against(ordered, SECOND_REFERENCE)
    runs = [run for group in comparison.groups.values() for run in group]
    settings = [defining_settings(run.config) for run in runs]
    shared = {
        name: value
        for name, value in settings[0].items()
        if all(other.get(name) == value for other in settings)
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(json.dumps(published(run, shared)) for run in runs)
    text = f'{{"shared": {json.dumps(shared)},\n"runs": [\n{rows}\n]}}\n'
    json.loads(text)
    output.with_suffix(".json").write_text(text)
    output.with_suffix(".md").write_text(in_markdown(comparison.table, remarks))


if __name__ == "__main__":
    publish(*map(Path, sys.argv[1:4]))
