"""The engine ``simulation``: clients in Ray's processes, as ``flwr run`` starts them."""

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkd_flwr.config import ConfigError, Configuration, require_importable
from fedkd_flwr.engines.superlink import APP_FOLDER, BOX, flwr_run_command, superlink
from fedkd_flwr.runs import Run, load_run, names_of_code
from fedkd_flwr.runs.continuing import checkpoint_to_continue_from
from strategies.core.printable_text import without_colors
from strategies.core.rounds import Observer, RoundRecord


def run_simulation(
    configuration: Configuration, observer: Observer, resources: Mapping[str, Any] | None
) -> Run:
    """Run a method with ``flwr run`` under Ray, on a SuperLink started for this run."""
    check_simulation(configuration)
    directory = Path(configuration.run.output_dir)
    completed = _completed_rounds(configuration)
    # A finished run that is continued has its old summary until the first new round is complete.
    summary = directory / "summary.json"
    old_summary = _state_of(summary)
    federation = {
        "num-supernodes": configuration.run.plan.num_clients,
        "client-resources-num-cpus": 1,
        **(resources or {}),
    }
    with tempfile.TemporaryDirectory(prefix="fedkd-") as folder, superlink(Path(folder)) as env:
        pairs = " ".join(f"{name}={value}" for name, value in federation.items())
        command = flwr_run_command(Path(folder), configuration)
        command = [*command, "--federation-config", pairs]
        reason = _follow(command, env, directory, observer, completed)
    if not summary.exists() or _state_of(summary) == old_summary:
        raise RuntimeError(f"The simulation did not finish; last output line: {reason}")
    return load_run(directory, names_of_code(configuration.flat()))


def check_simulation(configuration: Configuration, resources: object = None) -> None:
    """Refuse what this engine cannot run; see `run_simulation`."""
    if not (APP_FOLDER / "pyproject.toml").exists():
        raise ConfigError(
            "The engine simulation needs a clone of the project, and this is an installed package; "
            "type --engine in-process."
        )
    require_importable(configuration, "the simulation has")


def _completed_rounds(configuration: Configuration) -> int:
    run = configuration.run
    if not run.resume:
        return 0
    stopped = load_run(run.output_dir)
    return checkpoint_to_continue_from(stopped, run.state_dir)[0].completed_rounds


def _follow(
    command: list[str], env: dict[str, str], directory: Path, observer: Observer, rounds_seen: int
) -> str:
    """Run ``flwr run``; pass on its log and new rounds; return the line that explains a failure."""
    rows = directory / "rounds.jsonl"
    # Lines of a round that is repeated are there until the first new round is complete.
    seen = _state_of(rows)
    reason = "there was no error message"
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in map(without_colors, process.stdout or []):
            line = line.rstrip()
            observer.line_logged(line)
            words = line.strip(BOX)
            # Flower prints its own errors in a box with the title "Error".
            if "Error" in words or reason == "Error":
                reason = words
            # The log has many more lines than rounds, and the whole file is read each time.
            state = _state_of(rows)
            if state == seen:
                continue
            seen = state
            for row in Run(directory).rounds_after(rounds_seen):
                observer.round_finished(RoundRecord(row["round"], row))
                rounds_seen += 1
    return reason


def _state_of(file: Path) -> tuple[int, int]:
    """Return size and time of a file, by which a change is noticed."""
    return (file.stat().st_size, file.stat().st_mtime_ns) if file.exists() else (0, 0)
