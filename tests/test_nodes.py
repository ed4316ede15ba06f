"""`fedkd nodes`: how each client took part in a run."""

import json
import os
from datetime import UTC, datetime

import pytest
from helpers import Witness, run_with
from typer.testing import CliRunner

import fedkd_flwr
from fedkd_flwr.analysis.nodes import nodes_table, progress
from fedkd_flwr.cli import app
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.engines.in_process import InProcessGrid
from fedkd_flwr.runs import load_run


@pytest.fixture
def run(small, tmp_path):
    """A run of two rounds in which client 1 failed in the last."""
    fedkd_flwr.run(small, strategy="local", num_server_rounds=2, output_dir=tmp_path / "run")
    path = tmp_path / "run/clients.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    failed = next(row for row in rows if (row["round"], row["partition_id"]) == (2, 1))
    # An evaluation without a reply leaves no traffic.
    failed |= {"model": None, "failure": "no reply in time \x1b[2J", "numbers_up": None}
    rows = [row | {"name": "charite"} if row["partition_id"] == 1 else row for row in rows]
    for row in rows:
        row |= {"seconds": 2.5 * row["round"]} if row["partition_id"] == 0 else {}
    rows = [row for row in rows if row["partition_id"] != 2]  # was never connected
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_run(tmp_path / "run")


def test_rounds_and_failures_of_each_client(run):
    table = nodes_table(run)
    assert list(table.loc[0, ["last_asked", "last_valid", "asked", "failures"]]) == [2, 2, 2, 0]
    assert list(table.loc[1, ["last_asked", "last_valid", "asked", "failures"]]) == [2, 1, 2, 1]
    assert table.loc[1, "last_failure"].startswith("no reply in time")
    assert (table.loc[0, "last_failed"], table.loc[0, "last_failure"]) == (0, "")
    assert (table.loc[1, "last_failed"], list(table["name"])[:2]) == (2, ["", "charite"])
    assert list(table.loc[2, ["last_asked", "last_valid", "asked", "failures"]]) == [0, 0, 0, 0]
    assert table.loc[1, "model"] == run.config["models"].split(",")[1]


@pytest.mark.parametrize("strategy", ["local", "fedavg"])
def test_only_clients_that_received_a_message_were_asked(strategy, small, tmp_path):
    """Clients of `local` keep their evaluation until they train again; those of `fedavg` do not."""
    witness = Witness()
    sampled = {"strategy": strategy, "num-server-rounds": 4, "fraction-train": 0.5}
    run, _ = run_with(witness, {**small, **sampled, "models": "mlp"}, tmp_path / "run")
    contacts = {(client, server_round) for server_round, _, client in witness.down if server_round}
    rounds = {n: sorted(t for client, t in contacts if client == n) for n in range(4)}
    assert (sum(map(len, rounds.values())) < len(run.clients)) == (strategy == "local")
    table = nodes_table(run)
    assert table["asked"].to_dict() == {n: len(asked) for n, asked in rounds.items()}
    for column in ("last_asked", "last_valid"):
        assert table[column].to_dict() == {n: asked[-1] for n, asked in rounds.items()}


class Timed(InProcessGrid):
    """A grid that knows how long each node took in the last exchange."""

    @property
    def waited(self):
        return {node: node / 4 for node in self.get_node_ids()}


def test_seconds_are_recorded_where_the_grid_measures_them(small, tmp_path):
    settings = {**small, "num-server-rounds": 1}
    run, grid = run_with(client_app, settings, tmp_path / "timed", Timed)
    assert run.clients["seconds"].tolist() == [node / 4 for node in sorted(grid.get_node_ids())]
    plain, _ = run_with(client_app, settings, tmp_path / "plain")
    assert "seconds" not in plain.clients


def test_when_the_last_round_ended(run):
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    os.utime(run.path / "rounds.jsonl", (moment, moment))
    text = progress(run, datetime.fromtimestamp(moment + 90, UTC))
    assert text.startswith("round 2 of 2, finished 2026-01-02 03:04:05 UTC (90 s ago), ")
    taken = run.rounds[["seconds_train", "seconds_server", "seconds_evaluate"]].sum(axis=1).median()
    assert text.endswith(f"{taken:.1f} s a round (median)")


def test_the_command_prints_reasons_without_commands_for_the_terminal(run):
    result = CliRunner().invoke(app, ["nodes", str(run.path)])
    assert result.exit_code == 0
    assert "client 1, round 2: no reply in time [2J\n" in result.output
    assert "\x1b" not in result.output
    assert CliRunner().invoke(app, ["nodes", str(run.path.parent)]).exit_code == 1
