"""What a run directory, a node or a clock of somebody else must not do to this machine."""

import io
import logging
import os
import shutil

import numpy as np
import pytest
from conftest import SMALL
from helpers import change_json
from typer.testing import CliRunner

import fedkd_flwr
from fedkd_flwr.cli import app
from fedkd_flwr.memory import MemoryFolder, forget_old_runs
from fedkd_flwr.runs import DamagedRunError
from strategies.core.flower import log
from strategies.core.printable_text import printable, without_colors


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    settings = {**SMALL, "strategy": "kt-pfl", "models": "mlp", "num-server-rounds": 1}
    return fedkd_flwr.run(settings, output_dir=tmp_path_factory.mktemp("own") / "run")


@pytest.fixture
def peer(finished, tmp_path):
    return shutil.copytree(finished.path, tmp_path / "peer")


def npy(array, **changes):
    """Return the bytes of an array, with another header where asked for."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape, **changes}
    )
    return file.getvalue() + array.tobytes()


SMALL_ARRAY = np.zeros((1, 4, 4))

BOMBS = {
    "a header that says more than there is": (npy(SMALL_ARRAY, shape=(10**6, 10**6)), "0 of 1"),
    "a header that says less than nothing": (npy(SMALL_ARRAY, shape=(-1, 10**6)), "0 of 1"),
    "an array of objects": (npy(SMALL_ARRAY, descr="|O"), "which is no number"),
    "texts": (npy(np.zeros(4, dtype="U4")), "which is no number"),
    "no array": (b"PK", "0 of 1"),
}


@pytest.mark.parametrize("content, reason", BOMBS.values(), ids=BOMBS)
def test_headers_of_matrices_are_checked_first(content, reason, peer, monkeypatch):
    for file in (peer / "matrices").glob("*.npy"):
        file.write_bytes(content)
    monkeypatch.setattr(np, "load", None)
    with pytest.raises(DamagedRunError, match=reason):
        fedkd_flwr.load_run(peer)


ESCAPE = "\x1b[2J\x1b[31mall clear\x07\u202e"


def test_escapes_of_others_do_not_reach_the_terminal(peer):
    change_json(peer / "config.json", config={"strategy": ESCAPE})
    change_json(peer / "summary.json", strategy=ESCAPE)
    for line in (["compare"], ["compare", "--format", "table"], ["compare", "--format", "csv"],
                 ["rank"], ["genotypes"]):  # fmt: skip
        output = CliRunner().invoke(app, [*line, str(peer)]).output
        assert "\x1b" not in output
        assert "\x07" not in output
        assert "\u202e" not in output
        if line[0] == "compare":
            assert r"\x1b[31mall" in output.replace("\n", "")


def test_escapes_of_clients_do_not_reach_the_log(logged):
    log(logging.WARNING, "Client %d: %s", 3, ESCAPE)
    assert logged() == [r"Client 3: \x1b[2J\x1b[31mall clear\x07\u202e"]


def test_flowers_colors_are_removed_and_other_escapes_stay_visible():
    line = "\x1b[92mINFO \x1b[0m:      Round 1\x1b[2J"
    assert printable(without_colors(line)) == r"INFO :      Round 1\x1b[2J"


def test_only_the_owner_reads_a_run(finished):
    assert finished.path.stat().st_mode & 0o777 == 0o700
    files = [path for path in finished.path.rglob("*") if path.is_file() and path.name != "lock"]
    assert {path.suffix for path in files} == {".json", ".jsonl", ".npy", ".safetensors"}
    assert [path for path in files if path.stat().st_mode & 0o077] == []


def test_the_order_of_runs_is_recorded_and_needs_no_clock(tmp_path):
    """The clock went back: by time, the newest run is the oldest."""
    for age, name in enumerate("abcd"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "round-000001.safetensors").write_bytes(b"")
        forget_old_runs(MemoryFolder(folder), 3)
        os.utime(folder, (1000 - age, 1000 - age))
    kept = {path.parent.name for path in tmp_path.glob("*/round-*")}
    assert kept == {"b", "c", "d"}
    forget_old_runs(MemoryFolder(tmp_path / "b"), 2)
    assert {path.parent.name for path in tmp_path.glob("*/round-*")} == {"b", "d"}
