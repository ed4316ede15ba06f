"""Publish what `fedkd tune` tried and chose, as measurements for `check.py`.

    python docs/results/searches.py NAME FOLDER...

reads the studies in the folders of `fedkd tune` and stores, for each method, how many trials it
had, how many of them ran to the end, and the settings that were chosen.
"""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
from measurements import write_measurements
from optuna.trial import TrialState
from runs import maker

from fedkd_flwr.runs import load_run
from fedkd_flwr.tuning.study import FILE


def searches(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a line for each method of a folder, in the order of validation accuracy."""
    chosen = tomllib.loads((folder / "chosen.toml").read_text())["grid"]["combinations"]
    for settings in chosen:
        method = settings.pop("strategy")
        study = optuna.load_study(study_name=method, storage=f"sqlite:///{folder / method / FILE}")
        trials = study.get_trials(deepcopy=False)
        run = load_run(min((folder / method).glob("trial-*")))
        yield {
            "split": run.config["partition"],
            "strategy": method,
            "trials": len(trials),
            "run to the end": sum(one.state == TrialState.COMPLETE for one in trials),
            # The first trial has the preset's settings.
            "chosen": "the preset's" if study.best_trial.number == 0 else _listed(settings),
            "made by": maker(run.description),
        }


def _listed(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items())


def main(name: str, *folders: str) -> None:
    """Store the searches of some folders; a method in several of them counts in the first."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for folder in folders:
        for line in searches(Path(folder)):
            lines.setdefault((line["split"], line["strategy"]), line)
    write_measurements(name, lines.values())


if __name__ == "__main__":
    main(*sys.argv[1:])
