"""A real federation on this machine: one SuperLink and several SuperNodes over TLS."""

import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from processes import app_folder

from fedkd_flwr.bundles.approved import digest_of
from fedkd_flwr.config import read_config
from fedkd_flwr.data.clients import client_indices
from fedkd_flwr.data.sources import load_images
from fedkd_flwr.runs import load_run

ROOT = Path(__file__).parent.parent
PROGRAMS = Path(sys.executable).parent
NAME = "silo"
FRESH_PROCESSES = ("--fresh-processes",)

# Two rounds over 4 clients of 100 digits each: what a test can wait for.
SMALL = {
    "strategy": "kt-pfl",
    "dataset": "digits",
    "max-samples": 460,
    "held-out-size": 60,
    "public-size": 40,
    "partition": "iid",
    "client-split": "60/20/20",
    "models": "mlp",
    "num-clients": 4,
    "num-server-rounds": 2,
    "local-epochs": 1,
    "batch-size": 16,
    "learning-rate": 0.05,
    "device": "cpu",
    "torch-threads": 1,
    "connect-timeout": 300.0,
    "round-timeout": 600.0,
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds} s in vain for {what}")


def patience(seconds):
    """Return seconds for a machine that is as busy as this one."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def make_keys(folder, nodes):
    script = [sys.executable, ROOT / "deploy" / "make_keys.py", folder]
    for node in nodes:
        script += ["--node", node]
    subprocess.run(script, check=True, capture_output=True)


def images_of(config, partition_id):
    """Return the digits (uint8, 28x28) and classes that a partition would hold."""
    everything = load_images("digits")
    indices = client_indices(read_config(config).run.data_plan)[partition_id]
    return everything.images[indices, 0].numpy(), everything.labels[indices].numpy()


def node_config_text(node_config):
    """Write a node config as `flower-supernode --node-config` takes it."""
    values = {key: json.dumps(value) for key, value in node_config.items()}
    return " ".join(f"{key}={value}" for key, value in values.items()).replace("Infinity", "inf")


def processes_with(variable):
    """Return the pids whose environment holds a variable, such as ``FLWR_HOME=...``."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids


class Federation:
    """A SuperLink with TLS and SuperNode authentication, and nodes that can be broken.

    Use as a context manager: what it started is stopped at the end, by pid.
    """

    def __init__(self, folder, nodes=4):
        self.folder = folder
        self.keys = folder / "keys"
        self.port = self.node_port = free_port()  # nodes may be given another one, of a proxy
        self.node_configs = {
            n: {"partition-id": n, "epsilon-budget": math.inf} for n in range(nodes)
        }
        self.nodes = {}
        self.superlink = None
        self._logs = 0
        (folder / "home").mkdir(parents=True)
        make_keys(self.keys, [f"node-{n}" for n in range(nodes)])
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n[superlink.{NAME}]\n'
            f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.keys / "ca.crt"}"\n'
        )
        self.env = {
            **os.environ,
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1.0",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        }
        # Every message starts a Python; compiling PyTorch each time would take most of a test.
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop(*self.nodes.values())
        self.stop(self.superlink)
        # Flower's children watch their parents; this is for those that were frozen with them.
        for pid in processes_with(f"FLWR_HOME={self.env['FLWR_HOME']}"):
            signal_if_alive(pid, signal.SIGKILL)

    # ---- Processes ---------------------------------------------------------------------

    def start(self, name, command, env=None):
        """Start a program with a log file of its own, ``process.log_path``."""
        self._logs += 1
        log_path = self.folder / f"{self._logs:02d}-{name}.log"
        with log_path.open("w") as log_file:
            process = subprocess.Popen(
                [str(part) for part in command],
                env={**self.env, **(env or {})},
                stdout=log_file,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                # As daemons are: Linux shares the processor out by session.
                start_new_session=True,
            )
        process.log_path = log_path
        return process

    def stop(self, *processes):
        running = [p for p in processes if p is not None and p.poll() is None]
        for process in running:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in running:
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start_superlink(self):
        keys = self.keys
        command = [PROGRAMS / "flower-superlink", "--host", "127.0.0.1", "--port", self.port]
        command += ["--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.crt"]
        command += ["--ssl-keyfile", keys / "server.key", "--enable-supernode-auth"]
        command += ["--database", self.folder / "superlink.db"]
        self.superlink = self.start("superlink", command)
        self.wait_for_text(self.superlink, "Uvicorn running", patience(90))

    def node_command(self, node_config, key=None, root="ca.crt", insecure=False):
        command = [PROGRAMS / "flower-supernode", "--superlink", f"127.0.0.1:{self.node_port}"]
        command += ["--port", free_port(), "--node-config", node_config_text(node_config)]
        command += ["--insecure"] if insecure else ["--root-certificates", self.keys / root]
        command += ["--auth-supernode-private-key", self.keys / key] if key else []
        return command

    def start_node(self, n, env=None):
        command = self.node_command(self.node_configs[n], f"node-{n}")
        self.nodes[n] = self.start(f"node-{n}", command, env)
        return self.nodes[n]

    def start_all(self):
        self.start_superlink()
        for process in [self.start_register(n) for n in self.node_configs]:
            assert process.wait(timeout=300) == 0, process.log_path.read_text()
        for n in self.node_configs:
            self.start_node(n)
        for n in self.node_configs:
            self.wait_for_text(self.nodes[n], "SuperNode ID", patience(90))

    # ---- Flower's command line ---------------------------------------------------------

    def start_register(self, n):
        key = self.keys / f"node-{n}.pub"
        return self.start(f"register-{n}", [PROGRAMS / "flwr", "supernode", "register", key, NAME])

    def start_run(self, config):
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        command = [PROGRAMS / "flwr", "run", app_folder(), NAME, "--stream", "--run-config", text]
        return self.start("flwr-run", command)

    def end_run(self, process):
        """End the run that ``flwr run`` started, where Flower has it as running still."""
        run_id = re.search(r"started run (\d+)", process.log_path.read_text())[1]
        self.start("flwr-stop", [PROGRAMS / "flwr", "stop", run_id, NAME]).wait(timeout=300)

    def server_app_pid(self):
        for pid in processes_with(f"FLWR_HOME={self.env['FLWR_HOME']}"):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"flwr-serverapp" in command:
                return pid
        return None

    def finished_run(self, process, run_directory, seconds):
        """Wait for ``flwr run`` to end, and return its finished run."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience(seconds))
        run = load_run(run_directory)
        is_over = process.poll() is not None and run.finished
        assert is_over, f"{process.log_path.name} has not finished.\n{self.last_words()}"
        return run

    # ---- What the logs say -------------------------------------------------------------

    def last_words(self):
        """Return the ends of all logs and what is alive: a fault seldom comes twice alike."""
        alive = []
        for pid in processes_with(f"FLWR_HOME={self.env['FLWR_HOME']}"):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                alive.append(f"{pid} {command[:100].decode()}")
        logs = [f"== {path.name}\n{path.read_text()[-2500:]}" for path in self.folder.glob("*.log")]
        return "\n".join([f"Alive: {', '.join(alive)}", *sorted(logs)])

    @staticmethod
    def wait_for_text(process, text, seconds=120, count=1):
        def found():
            log = process.log_path.read_text()
            over = process.poll() is not None and log.count(text) < count
            assert not over, f"{process.args[0]} ended without {text!r}:\n{log[-3000:]}"
            return log.count(text) >= count

        wait_until(found, seconds, f"{text!r} in {process.log_path}")


class GuardedFederation(Federation):
    """A federation whose nodes have an app process each, which executes approved bundles alone."""

    def __init__(self, folder, nodes=4):
        super().__init__(folder, nodes)
        self.approved = folder / "approved-bundles"
        self.secret = folder / "superexec.secret"
        self.secret.write_bytes(b"of node and app process alone")
        self.runtime_ports = {}
        self.app_options = {}
        """Options of ``fedkd superexec`` by node."""
        self.apps = {}

    def __exit__(self, *failure):
        self.stop(*self.apps.values())
        super().__exit__(*failure)

    def start_node(self, n, env=None):
        command = self.node_command(self.node_configs[n], f"node-{n}")
        self.runtime_ports[n] = command[command.index("--port") + 1]
        command += ["--isolation", "process", "--superexec-auth-secret-file", self.secret]
        self.nodes[n] = self.start(f"node-{n}", command, env)
        self.start_app(n)
        return self.nodes[n]

    def signal_node(self, n, number):
        for process in (self.nodes[n], self.apps[n]):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def start_app(self, n):
        """Start a node's app process."""
        self.stop(self.apps.get(n))  # a node that was killed has left it
        command = [PROGRAMS / "fedkd", "superexec", *self.app_options.get(n, ()), "--insecure"]
        command += ["--runtime-api-address", f"127.0.0.1:{self.runtime_ports[n]}"]
        command += ["--superexec-auth-secret-file", self.secret]
        env = {
            "FEDKD_APPROVED_BUNDLES": str(self.approved),
            "FLWR_HOME": str(self.folder / "home" / f"app-{n}"),
        }
        self.apps[n] = self.start(f"app-{n}", command, env)

    def approve(self):
        """Approve the bundle of this clone for all nodes, and return its digest."""
        build = [PROGRAMS / "flwr", "build", "--app", app_folder()]
        subprocess.run(build, cwd=self.folder, env=self.env, check=True)
        (built,) = self.folder.glob("*.fab")
        approve = [PROGRAMS / "fedkd", "bundles", "approve", built, "--list", self.approved]
        subprocess.run(approve, env=self.env, check=True)
        return digest_of(built.read_bytes())


def signal_if_alive(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
