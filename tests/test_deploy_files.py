"""What `deploy/` ships: services, and the script that makes keys."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedkd_flwr.bundles import forking
from fedkd_flwr.cli import app
from fedkd_flwr.engines.superlink import quiet_environment

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
SERVICES = sorted(DEPLOY.glob("*.service"))
CONFINED = (
    "NoNewPrivileges=yes",
    "ProtectSystem=strict",
    "ProtectHome=yes",
    "PrivateTmp=yes",
    "UMask=0077",
    "IPAddressDeny=any",
    "CapabilityBoundingSet=",
    "Environment=FLWR_TELEMETRY_ENABLED=0",
)


def make_keys(folder, *options):
    command = [sys.executable, DEPLOY / "make_keys.py", folder, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def mode(path):
    return oct(path.stat().st_mode & 0o777)


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.name)
def test_a_service_is_confined(service):
    lines = service.read_text().splitlines()
    assert [line for line in CONFINED if line not in lines] == []
    assert not any(line.startswith("User=root") for line in lines)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.name)
def test_systemd_finds_nothing_wrong_with_a_service(service, tmp_path):
    """Names of settings and their values; the programs are those of this environment."""
    programs = str(Path(sys.executable).parent)
    for shipped in SERVICES:
        text = shipped.read_text().replace("/opt/fedkd/.venv/bin", programs)
        (tmp_path / shipped.name).write_text(text)
    unit = tmp_path / service.name.replace("@.", "@hospital-a.")
    command = ["systemd-analyze", "verify", "--man=no", unit]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


def test_the_node_and_its_app_are_different_users():
    names = "fedkd-supernode@.service", "fedkd-app@.service"
    node, execution = ((DEPLOY / name).read_text() for name in names)
    users = [re.search("^User=(.+)$", text, re.M)[1] for text in (node, execution)]
    assert users == ["fedkd-node", "fedkd-app"]
    assert "node.key" not in execution
    assert "--isolation process" in node
    assert "fedkd superexec" in execution


def test_the_superlink_listens_on_this_machine_alone():
    text = (DEPLOY / "fedkd-superlink.service").read_text()
    assert "--host 127.0.0.1" in text
    assert "0.0.0.0" not in text


def test_flower_is_started_without_telemetry_unless_the_user_asks_for_it(monkeypatch):
    monkeypatch.delenv("FLWR_TELEMETRY_ENABLED", raising=False)
    assert quiet_environment()["FLWR_TELEMETRY_ENABLED"] == "0"
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    assert quiet_environment()["FLWR_TELEMETRY_ENABLED"] == "1"


def test_secret_files_are_for_their_owner_even_where_they_were_not(tmp_path):
    keys = tmp_path / "keys"
    assert make_keys(keys, "--node", "hospital-a").returncode == 0
    secret = ("ca.key", "server.key", "hospital-a")
    assert {mode(keys / name) for name in secret} == {"0o600"}
    keys.chmod(0o755)
    for name in secret:
        (keys / name).chmod(0o644)
    assert make_keys(keys, "--node", "hospital-b").returncode == 0
    assert {mode(keys / name) for name in (*secret, "hospital-b")} == {"0o600"}
    assert mode(keys) == "0o700"


def verifies(keys):
    command = ["openssl", "verify", "-CAfile", keys / "ca.crt", keys / "server.crt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("lost", ["ca.crt", "ca.key", "server.crt", "server.key", "a", "a.pub"])
def test_a_half_that_is_missing_after_a_crash_is_made(lost, tmp_path):
    assert make_keys(tmp_path, "--node", "a").returncode == 0
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    (tmp_path / lost).unlink()
    assert make_keys(tmp_path, "--node", "a", "--host", "localhost").returncode == 0
    after = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert after.keys() == before.keys()
    assert verifies(tmp_path)
    assert (after["ca.key"] == before["ca.key"]) == (lost != "ca.key")
    assert (after["a.pub"] == before["a.pub"]) == (lost != "a")


def test_a_key_that_was_cut_off_is_named(tmp_path):
    (tmp_path / "ca.key").write_bytes(b"")
    refused = make_keys(tmp_path)
    assert refused.returncode == 1
    assert (
        refused.stderr
        == f"{tmp_path}/ca.key holds no private key; remove it, and call this again\n"
    )


def test_a_full_disk_leaves_no_part_of_a_key(tmp_path):
    script = f"ulimit -f 0; {sys.executable} {DEPLOY / 'make_keys.py'} {tmp_path / 'keys'}"
    subprocess.run(["bash", "-c", script], capture_output=True, check=False)
    assert not (tmp_path / "keys" / "ca.key").exists()
    assert make_keys(tmp_path / "keys").returncode == 0


@pytest.fixture
def programs(tmp_path):
    """Programs that do nothing but wait, and note the options of a node."""
    waits = "exec sleep 300"
    named = {
        "flower-superlink": waits,
        "fedkd": f"[ $1 = bundles ] && exit; echo \"$@\" >>'{tmp_path}/options'\n{waits}",
        "flwr": "exit 0",
        "python": f"exec '{sys.executable}' \"$@\"",
    }
    for name, line in named.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
    return tmp_path / "bin"


def test_a_node_is_restarted_as_the_federation_was_started(programs, tmp_path):
    script = ["bash", DEPLOY / "local_federation.sh", tmp_path / "federation"]
    given = {**os.environ, "FEDKD_BIN": str(programs)}
    chosen = {"NODE_CONFIG": 'data-path="/srv/%n" epsilon-budget=inf'}
    with subprocess.Popen(
        [*script, "1"], env={**given, **chosen}, stdout=subprocess.PIPE, text=True
    ) as federation:
        assert any("Ready" in line for line in federation.stdout)
        try:
            subprocess.run([*script, "restart", "0"], env=given, check=True, capture_output=True)
            deadline = time.monotonic() + 30
            while len((tmp_path / "options").read_text().splitlines()) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        finally:
            subprocess.run([*script, "stop"], env=given, check=True, capture_output=True)
    started, restarted = (tmp_path / "options").read_text().splitlines()
    assert restarted == started
    assert started.startswith("start-node") and "trust-server" not in started
    assert started.endswith('data-path="/srv/0" epsilon-budget=inf')


def test_a_node_ends_with_its_connection(programs, tmp_path, monkeypatch):
    """Both processes share a secret of their own, and stop together."""
    note = f"echo \"$@\" >>'{tmp_path}/options'"
    for name, then in (("flower-supernode", "sleep 2"), ("fedkd", "exec sleep 300")):
        (programs / name).write_text(f"#!/bin/sh\n{note}\n{then}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setattr(forking.signal, "signal", lambda *_: None)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    options = ["--superlink", "a:443", "--node-config", "partition-id=0"]
    shown = CliRunner().invoke(app, ["start-node", *options])
    assert (shown.exit_code, "flower-supernode has ended" in shown.output) == (1, True)
    assert "trust-server = false" in shown.output
    node, execution = sorted((tmp_path / "options").read_text().splitlines())
    port = re.match(r"superexec --insecure --runtime-api-address 127.0.0.1:(\d+) ", execution)[1]
    assert f"--superlink a:443 --isolation process --host 127.0.0.1 --port {port} " in node
    socket.create_server(("127.0.0.1", int(port))).close()  # it was free
    assert node.split()[-1] == execution.split()[-1] and not Path(node.split()[-1]).exists()
    refused = CliRunner().invoke(app, ["start-node", "--node-config", "partition=0"])
    assert "unknown partition in the node's config" in refused.output


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/b", ".hidden", "", "ca.key", "a b"])
def test_a_node_is_not_called_by_a_path(tmp_path, name):
    refused = make_keys(tmp_path / "keys", "--node", name)
    assert refused.returncode == 2
    assert "a node cannot be called" in refused.stderr
    assert not (tmp_path / "keys").exists()
