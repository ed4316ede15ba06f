"""A node as the guide deploys it: behind a proxy, with its app in a process of its own.

The SuperLink listens on 127.0.0.1 behind nginx with the configuration in `deploy/`. The node's
app process executes approved bundles alone. Its SuperNode has the key, and executes nothing.
"""

import shutil
import ssl
import urllib.error
import urllib.request

import federation as fed
import pytest
from federation import ROOT, GuardedFederation

pytestmark = pytest.mark.slow

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
CONFIG = {
    **fed.SMALL,
    "max-samples": 260,
    "num-clients": 2,
    "num-server-rounds": 1,
    "connect-timeout": 20.0,
}
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


class SecuredFederation(GuardedFederation):
    """Nodes reach the SuperLink through nginx."""

    def __init__(self, folder):
        super().__init__(folder, nodes=2)
        self.node_port = fed.free_port()
        self.proxy = None

    def __exit__(self, *failure):
        self.stop(self.proxy)
        super().__exit__(*failure)

    def start_proxy(self):
        """Start nginx with the shipped server, on another port and with keys of this folder."""
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
        """Return the status with which a POST without a key of a node is answered."""
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
def secured(tmp_path_factory):
    if NGINX is None:
        pytest.skip("nginx is not installed (on Debian: apt-get install nginx-light)")
    with SecuredFederation(tmp_path_factory.mktemp("secured")) as federation:
        federation.start_superlink()
        for process in [federation.start_register(n) for n in federation.node_configs]:
            assert process.wait(timeout=300) == 0, process.log_path.read_text()
        federation.start_proxy()
        for n in federation.node_configs:
            federation.start_node(n)
        for node in federation.nodes.values():
            federation.wait_for_text(node, "SuperNode ID", fed.patience(90))
        yield federation


def test_the_proxy_answers_everything_but_the_fleet_itself(secured):
    open_directly = secured.status("/v1/control/list-runs", secured.port)
    assert open_directly == 200, "the SuperLink answers control calls of strangers on this machine"
    assert {path: secured.status(path) for path in CLOSED} == dict.fromkeys(CLOSED, 403)
    # The SuperLink itself refuses a fleet call that no key has signed.
    assert secured.status("/v1/fleet/pull-messages") == 401


def test_a_node_executes_a_bundle_once_it_is_approved(secured):
    refused = secured.start_run({**CONFIG, "output-dir": str(secured.folder / "refused")})
    refused.wait(timeout=fed.patience(300))
    digest = secured.approve()
    for app in secured.apps.values():
        assert f"does not execute the bundle {digest}" in app.log_path.read_text()
    assert f"does not execute the bundle {digest}" in refused.log_path.read_text()
    assert not list((secured.folder / "home").glob("app-*/**/fedkd_flwr"))

    process = secured.start_run({**CONFIG, "output-dir": str(secured.folder / "run")})
    run = secured.finished_run(process, secured.folder / "run", 600)
    assert list(run.rounds["replies"]) == [2]
    for n in secured.node_configs:
        homes = secured.folder.glob(f"home/app-{n}/approved/{digest}/apps/*/fedkd_flwr")
        assert len(list(homes)) == 1
