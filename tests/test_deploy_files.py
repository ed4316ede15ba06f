"""What `deploy/` ships: services, and the script that makes keys."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
    def read(name):
        return (DEPLOY / name).read_text()

    node, app = read("fedkd-supernode@.service"), read("fedkd-app@.service")
    users = [re.search("^User=(.+)$", text, re.M)[1] for text in (node, app)]
    assert users == ["fedkd-node", "fedkd-app"]
    assert "node.key" not in app
    assert "--isolation process" in node
    assert "fedkd superexec" in app


def test_the_superlink_listens_on_this_machine_alone():
    text = (DEPLOY / "fedkd-superlink.service").read_text()
    assert "--host 127.0.0.1" in text
    assert "0.0.0.0" not in text


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_accepts_the_services(tmp_path):
    programs = Path(sys.executable).parent
    for service in SERVICES:
        text = service.read_text().replace("/opt/fedkd/.venv/bin", str(programs))
        name = service.name.replace("@", "@hospital-a")
        (tmp_path / name).write_text(text.replace("@%i", "@hospital-a"))
    units = [str(unit) for unit in tmp_path.iterdir()]
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True
    )
    mentioned = [line for line in verified.stderr.splitlines() if "fedkd" in line]
    assert (verified.returncode, mentioned) == (0, [])


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


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/b", ".hidden", "", "ca.key", "a b"])
def test_a_node_is_not_called_by_a_path(tmp_path, name):
    refused = make_keys(tmp_path / "keys", "--node", name)
    assert refused.returncode == 2
    assert "a node cannot be called" in refused.stderr
    assert not (tmp_path / "keys").exists()
