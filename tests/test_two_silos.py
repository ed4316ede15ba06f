"""Two nodes as the guide deploys them: behind a proxy, with their apps in processes of their own.

The SuperLink listens on 127.0.0.1 behind nginx with the configuration in `deploy/`. Each node's
app process executes approved bundles alone. Its SuperNode has the key, and executes nothing.
Runs follow one another on the same nodes, which allow the methods and the code of all of them.
"""

import shutil
import ssl
import urllib.error
import urllib.request

import federation as fed
import numpy as np
import pytest
from federation import FRESH_PROCESSES, ROOT, GuardedFederation
from helpers import run_with
from test_engines import assert_same_new_clients

from fedkd_flwr.bundles.approved_runs import approve_run
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import ALL_CONNECTED, read_config

pytestmark = pytest.mark.slow

NEAREST = "examples.own_method:nearest"
RECURRENT = "examples.own_series:Recurrent"
FOREST = "sklearn.ensemble:RandomForestClassifier"
POLICY = {
    "allow-methods": "soft-predictions,persfl",
    "allow-counts": True,
    "min-class-count": 3,
}
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
CLOSED = (
    "/v1/control/list-runs",
    "/v1/control/start-run",
    "/v1/runtime/acquire-task",
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/..%2fcontrol/list-runs",
    "//v1/control/list-runs",
    "/health",
    "/docs",
    "/",
)
"""Paths that the proxy answers itself."""

# Every exchange costs each node a process: evaluate once.
SETTINGS = {**fed.SMALL, "num-clients": 2, "evaluate-every": 2}


class ProxiedFederation(GuardedFederation):
    """Nodes reach the SuperLink through nginx, where it is installed."""

    def __init__(self, folder):
        super().__init__(folder, nodes=2)
        self.proxy = None

    def __exit__(self, *failure):
        self.stop(self.proxy)
        super().__exit__(*failure)

    def start_superlink(self):
        super().start_superlink()
        if NGINX is not None:
            self.start_proxy()

    def start_proxy(self):
        """Start nginx with the shipped server, on another port and with keys of this folder."""
        self.node_port = fed.free_port()
        server = (ROOT / "deploy" / "nginx-fedkd.conf").read_text()
        server = server.replace("listen 443", f"listen 127.0.0.1:{self.node_port}")
        server = server.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        server = server.replace("/etc/fedkd", str(self.keys))
        temporary = " ".join(
            f"{kind}_temp_path {self.folder}/nginx-{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        path = self.folder / "nginx.conf"
        path.write_text(
            f"daemon off; pid {self.folder}/nginx.pid; error_log stderr;\n"
            f"events {{}}\nhttp {{ access_log off; {temporary}\n{server}}}\n"
        )
        self.proxy = self.start("nginx", [NGINX, "-c", path, "-p", self.folder])
        fed.wait_until(lambda: self.status("/") == 403, 20, "nginx")

    def status(self, path, port=None, body=b""):
        context = ssl.create_default_context(cafile=self.keys / "ca.crt")
        url = f"https://127.0.0.1:{port or self.node_port}{path}"
        headers = {"Content-Type": "application/protobuf"}
        request = urllib.request.Request(url, body, headers, method="POST")
        try:
            with urllib.request.urlopen(request, context=context, timeout=20) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None


@pytest.fixture(scope="module")
def silos(tmp_path_factory):
    with ProxiedFederation(tmp_path_factory.mktemp("silos")) as federation:
        for node in federation.node_configs.values():
            approved = str(federation.folder / "approved-runs")
            node |= {"num-partitions": 2, **POLICY, "approved-runs": approved}
        federation.start_all()
        yield federation


@pytest.fixture(scope="module")
def refused(silos):
    """What was said of a run whose bundle no node had approved. Its digest is approved now."""
    settings = {**SETTINGS, "connect-timeout": 20.0, "output-dir": str(silos.folder / "refused")}
    process = silos.start_run(settings)
    process.wait(timeout=fed.patience(300))
    logs = [app.log_path.read_text() for app in silos.apps.values()]
    unpacked = list((silos.folder / "home").glob("app-*/**/fedkd_flwr"))
    return silos.approve(), process.log_path.read_text(), logs, unpacked


@pytest.fixture
def approved(silos, refused):
    """The nodes once they execute the bundle."""
    return silos


def start_approved(federation, settings):
    """Approve a run, and start it as ``fedkd run --engine deployment`` does: each setting given."""
    approve_run(settings, federation.folder / "approved-runs")
    return federation.start_run(read_config({**ALL_CONNECTED, **settings}).for_flower())


def in_process(settings, path):
    return run_with(client_app, settings, path)[0]


def assert_same_last_round(there, here):
    last, expected = there.rounds.iloc[-1], here.rounds.iloc[-1]
    np.testing.assert_allclose(last["loss_mean"], expected["loss_mean"], rtol=1e-5)
    assert last["accuracy_mean"] == pytest.approx(expected["accuracy_mean"])


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed (apt-get install nginx-light)")
def test_the_proxy_answers_everything_but_the_fleet_itself(silos):
    open_directly = silos.status("/v1/control/list-runs", silos.port)
    assert open_directly == 200, "the SuperLink answers control calls of strangers on this machine"
    assert {path: silos.status(path) for path in CLOSED} == dict.fromkeys(CLOSED, 403)
    # The SuperLink itself refuses a fleet call that no key has signed.
    assert silos.status("/v1/fleet/pull-messages") == 401


def test_no_node_executes_a_bundle_that_is_not_approved(refused):
    digest, of_run, of_nodes, unpacked = refused
    for log in (of_run, *of_nodes):
        assert f"does not execute the bundle {digest}" in log
    assert "The run stopped: " in of_run
    assert unpacked == []


def test_new_clients_among_those_connected_have_the_results_of_one_process(approved, tmp_path):
    """PersFL sends the stored global models to its new clients."""
    persfl = {"strategy": "persfl", "persfl.imitation": "0.5", "persfl.temperatures": "2"}
    settings = {**SETTINGS, **persfl, "persfl.distillation-epochs": 1, "new-clients": 0.5}
    connected = {**settings, "num-clients": 0, "output-dir": str(tmp_path / "run")}
    process = approved.start_run(connected)
    there = approved.finished_run(process, tmp_path / "run", 400)
    assert there.config["num-clients"] == 2
    assert_same_new_clients(there, in_process(settings, tmp_path / "here"))
    for n in approved.node_configs:
        bundles = (approved.folder / "home" / f"app-{n}" / "approved").glob("*/*")
        assert [len(list(bundle.glob("apps/*/fedkd_flwr"))) for bundle in bundles] == [1]


def test_custom_code_gives_the_numbers_of_one_process(approved, tmp_path):
    series = {"dataset": "examples.own_series:waves", "models": f"mlp,{RECURRENT}"}
    settings = {**SETTINGS, **series, "strategy": NEAREST}
    packed = {"own-settings": "nearest.sharpness = 3", "output-dir": str(tmp_path / "run")}
    process = start_approved(approved, {**settings, **packed})
    there = approved.finished_run(process, tmp_path / "run", 400)
    here = in_process({**settings, "nearest.sharpness": 3.0}, tmp_path / "here")
    assert there.config["nearest.sharpness"] == 3.0
    models = there.clients.sort_values(["round", "partition_id"])["model"]
    assert list(models)[:2] == ["mlp", RECURRENT]
    assert_same_last_round(there, here)
    np.testing.assert_allclose(
        there.matrices["coefficients"], here.matrices["coefficients"], rtol=1e-5
    )


def test_a_forest_on_one_node_gives_the_numbers_of_one_process(approved, tmp_path):
    """Its node starts a new Python for each message; the other one forks, as in all other runs."""
    approved.app_options[1] = FRESH_PROCESSES
    approved.start_app(1)
    options = "RandomForestClassifier = {n_estimators = 5}"
    settings = {**SETTINGS, "models": f"mlp,{FOREST}", "estimator-options": options}
    process = start_approved(approved, {**settings, "output-dir": str(tmp_path / "run")})
    there = approved.finished_run(process, tmp_path / "run", 400)
    here = in_process(settings, tmp_path / "here")
    models = there.clients.sort_values(["round", "partition_id"])["model"]
    assert list(models) == ["mlp", FOREST] * 2
    assert_same_last_round(there, here)
