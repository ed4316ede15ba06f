"""Measure the time of a round in a federation of separate processes on this machine.

    [PROCESSES=forked|fresh|flower] python deploy/measure_rounds.py [--nodes 3] [--rounds 6]
                                                 [--config 'KEY=VALUE ...'] [--json FILE]

The script starts `deploy/local_federation.sh` in a temporary folder and runs KT-pFL with MLPs on
the digits. It prints the wall-clock and CPU seconds of each round except the first, and the load
of the machine before the run. FILE receives the same numbers as JSON. CPU seconds include
SuperLink, SuperNodes and their child processes (Linux only).
PROCESSES says how client apps are started, as in `deploy/local_federation.sh`.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from itertools import pairwise
from pathlib import Path

LOCAL_FEDERATION = Path(__file__).with_name("local_federation.sh")
ROOT = LOCAL_FEDERATION.parents[1]
PROGRAMS = Path(os.environ.get("FEDKD_BIN", ROOT / ".venv/bin"))

CONFIG = 'strategy="kt-pfl" dataset="digits" models="mlp" torch-threads=1'

Moment = tuple[float, float]
"""Wall-clock time, and the CPU seconds that a federation has used so far."""


def processor_seconds(home: Path) -> float:
    """Return the CPU seconds of a federation's processes and of their finished children."""
    mark = f"FLWR_HOME={home}".encode()
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                # Fields after the name in brackets: user and system time, own and of children.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
        except OSError:  # it has ended, or belongs to another user
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def ends_of_rounds(run: subprocess.Popen[bytes], folder: Path) -> Iterator[Moment]:
    """Yield the time at which each round ends, as it ends."""
    rows, seen = folder / "run/rounds.jsonl", 0
    while run.poll() is None:
        written = rows.read_bytes().count(b"\n") if rows.exists() else 0
        if written > seen:
            seen = written
            yield time.monotonic(), processor_seconds(folder / "flwr")
        time.sleep(0.05)


def measure(folder: Path, nodes: int, rounds: int, port: int, config: str) -> list[Moment]:
    """Run a federation in a folder; return seconds and CPU seconds of rounds 2 and later.

    Raises
    ------
    RuntimeError
        If the federation does not start, or the run does not finish.
    """
    federation = subprocess.Popen(
        [LOCAL_FEDERATION, folder, str(nodes), str(port)], stdout=subprocess.PIPE, text=True
    )
    assert federation.stdout is not None
    try:
        if not any(line.startswith("Ready") for line in federation.stdout):
            raise RuntimeError(f"the federation did not start; see {folder}/*.log")
        values = (
            f'{config} num-clients={nodes} num-server-rounds={rounds} output-dir="{folder}/run"'
        )
        run = subprocess.Popen(
            [PROGRAMS / "flwr", "run", ".", "local", "--stream", "--run-config", values],
            cwd=ROOT,
            env={**os.environ, "FLWR_HOME": str(folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0"},
            stdout=(folder / "flwr-run.log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        ends = list(ends_of_rounds(run, folder))
        if not (folder / "run/summary.json").exists():
            raise RuntimeError(f"the run did not finish; see {folder}/flwr-run.log")
    finally:
        federation.send_signal(signal.SIGTERM)
        federation.wait()
    return [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(ends)]


def main() -> None:
    """Parse the command line, measure, and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--port", type=int, default=8000, help="first port; each node uses one more"
    )
    parser.add_argument("--config", default=CONFIG, help="run config, as for flwr run")
    parser.add_argument("--json", type=Path, help="file for the measured numbers")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        taken = measure(path, arguments.nodes, arguments.rounds, arguments.port, arguments.config)
        rows = map(json.loads, (path / "run/rounds.jsonl").read_text().splitlines())
        failures = sum(row["failures"] for row in rows)
    measured = dict(zip(("seconds", "processor"), zip(*taken, strict=True), strict=True))
    print(f"{arguments.nodes} nodes, {os.cpu_count()} cores, load {load:.1f}: {failures} failures")
    for name, values in measured.items():
        each = ", ".join(f"{value:.1f}" for value in values)
        print(f"{name:10} {statistics.median(values):5.1f} a round (median of {each})")
    if arguments.json:
        found = {
            "date": date.today().isoformat(),
            "nodes": arguments.nodes,
            "cores": os.cpu_count(),
            "load": round(load, 1),
            "failures": failures,
            **{name: [round(value, 1) for value in values] for name, values in measured.items()},
        }
        arguments.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
