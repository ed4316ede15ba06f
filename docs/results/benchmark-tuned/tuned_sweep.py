r"""Tune every method on validation data alone, then run the chosen settings on fresh seeds.

    python docs/results/benchmark-tuned/tuned_sweep.py \
        conf/compare/fashion-mnist-same.toml dirichlet data-root=DATA_ROOT

The script tries the settings in `grid.toml` on the tuning seed. It writes their validation
accuracy to ``fashion-mnist-same-dirichlet-tuning.json`` beside this file, and the best setting of
each method to ``conf/compare/chosen/fashion-mnist-same-dirichlet.toml``. Then it runs that sweep.
Runs are kept under ``runs/compare``. A second call resumes where the first stopped.
"""

import json
import sys
from pathlib import Path

from fedkd_flwr.analysis.tuning import (
    Candidate,
    best_of_each,
    read_grid,
    sweep_text,
    validation_accuracy,
)
from fedkd_flwr.config import read_config
from fedkd_flwr.config_files import parse_assignment, read_toml
from fedkd_flwr.flat import Scalar
from fedkd_flwr.sweeps import SweepProgress, read_sweep, run_sweep

ROOT = Path(__file__).resolve().parents[3]
GRID = Path(__file__).parent / "grid.toml"
TUNING_SEED = 0
SEEDS = (11, 12, 13)


def tell(progress: SweepProgress) -> None:
    """Print one line a run."""
    print(
        f"{progress.number}/{progress.total} {progress.name} {progress.state} {progress.error}",
        flush=True,
    )


def tune(
    preset: Path, partition: str, folder: Path, settings: dict[str, Scalar]
) -> list[tuple[Candidate, float]]:
    """Run all candidates and return them with their validation accuracy.

    Parameters
    ----------
    preset : Path
        Settings that all runs share.
    partition : str
        The split over clients.
    folder : Path
        Folder of the runs.
    settings : dict
        More settings of every run, such as ``data-root``.
    """
    candidates = read_grid(GRID, read_config(read_toml(preset)).run.models.models)
    folder.mkdir(parents=True, exist_ok=True)
    sweep = folder / "tuning.toml"
    base = {"preset": str(preset.resolve()), "partition": partition}
    sweep.write_text(sweep_text(base, candidates, [TUNING_SEED]))
    runs = run_sweep(sweep, folder, on_run=tell, settings=settings)
    finished = {run.path.name: run for run in runs}
    scores = []
    for name, candidate in zip(read_sweep(sweep, settings), candidates, strict=True):
        run = finished.get(name)
        if run is None:
            print(f"{name} failed and cannot be selected.")
        else:
            scores.append((candidate, validation_accuracy(run)))
    return scores


def write_scores(path: Path, scores: list[tuple[Candidate, float]]) -> None:
    """Write the validation accuracy of every candidate, one line each."""
    lines = [
        json.dumps(
            {
                "strategy": candidate.strategy,
                **candidate.settings,
                "validation_accuracy": round(score, 4),
            }
        )
        for candidate, score in scores
    ]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def main(preset: Path, partition: str, settings: dict[str, Scalar]) -> None:
    """Tune, write the selected settings, and run them."""
    name = f"{preset.stem}-{partition}"
    folder = Path("runs") / "compare" / name
    scores = tune(preset, partition, folder / "tuning", settings)
    write_scores(Path(__file__).parent / f"{name}-tuning.json", scores)
    sweep = ROOT / "conf" / "compare" / "chosen" / f"{name}.toml"
    sweep.parent.mkdir(exist_ok=True)
    comment = (
        "Each method with the settings that its validation data chose on the tuning seed;\n"
        "written by docs/results/benchmark-tuned/tuned_sweep.py."
    )
    base = {"preset": f"../{preset.name}", "partition": partition}
    sweep.write_text(sweep_text(base, best_of_each(scores), SEEDS, comment))
    run_sweep(sweep, folder / "final", on_run=tell, settings=settings)


if __name__ == "__main__":
    preset_path, split, *assignments = sys.argv[1:]
    main(Path(preset_path), split, dict(map(parse_assignment, assignments)))
