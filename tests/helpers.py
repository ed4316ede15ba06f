"""Helpers of the tests: runs with a modified app, clients, spies, data files."""

import contextlib
import io
import json
import resource
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, RecordDict
from PIL import Image

import fedkd_flwr
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.client_app import build_client, train_together
from fedkd_flwr.clients.policy import TRUSTED_NODE
from fedkd_flwr.config import ConfigError, flatten, read_config
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.engines.in_process import InProcessGrid
from fedkd_flwr.runs import read_checkpoint
from fedkd_flwr.server_app import serve
from fedkd_flwr.training.jobs import SuspendedClient
from strategies.core.membership import MEMBERS
from strategies.core.replies import Reply

# ---- Runs and clients ----------------------------------------------------------------


def run_with(app, flat, folder, grid_type=InProcessGrid, nodes=None, node_configs=None, **changes):
    """Run in this process with `app` instead of the clients; return the run and the grid.

    There are as many nodes as clients if `nodes` is left out. With ``cohort = "on"``, clients of a
    `Witness` of the real app train together.
    """
    configuration = read_config({**flat, **changes, "output-dir": str(folder)})
    nodes = nodes or configuration.run.plan.num_clients
    together = getattr(app, "together", None) if configuration.run.cohort == "on" else None
    grid = grid_type(app, nodes, configuration.flat(), node_configs, together)
    return serve(grid, configuration), grid


def pyproject_config():
    """Return the run config of a bare `flwr run`."""
    content = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    return flatten(content["tool"]["flwr"]["app"]["config"])


def client_of(flat, partition_id=0, context=None, **changes):
    """Build the client of a run config, one that remembers nothing if no context is given."""
    if context is None:
        run_config = read_config({**flat, **changes}).flat()
        context = Context(
            1, 1, {"partition-id": partition_id, **TRUSTED_NODE}, RecordDict(), run_config
        )
    return build_client(context)


def stopped(settings, folder, last_round):
    """Run up to a round, as if the user then pressed Ctrl-C; return the run's folder."""

    def stop(row):
        if row["round"] == last_round:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedkd_flwr.run(settings, output_dir=folder, on_round=stop)
    return folder


def assert_refused(sentence, settings, folder):
    """Require that settings are refused in one line, and that nothing is written."""
    with pytest.raises((ConfigError, DataError), match=sentence) as refused:
        fedkd_flwr.run(settings, output_dir=folder)
    assert "\n" not in str(refused.value)
    assert not folder.exists()


def change_json(path, **entries):
    """Change entries of a file; an object is merged into the one that is there."""
    content = json.loads(path.read_text())
    for name, value in entries.items():
        content[name] = {**content.get(name, {}), **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(content))


def read_lines(path):
    """Return the objects of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def assert_same_weights(models, others):
    """Compare the parameters and buffers of two lists of models."""
    found, expected = ([model.state_dict() for model in both] for both in (models, others))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@contextlib.contextmanager
def file_size_limit(size):
    """Let the kernel refuse to write a file beyond a size, as it does on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def first_job(train, *arguments):
    """Return the first job of a client's training, which is left there."""
    return SuspendedClient(lambda: train(*arguments), "cpu").go_on()


def state_of(run_directory):
    """Return the arrays of a method's saved state by name, without those of its clients."""
    saved = read_checkpoint(run_directory).state
    return {name: array for name, array in saved.items() if not name.startswith(MEMBERS)}


def names_in_state(run_directory):
    """Return the names of the arrays in a method's saved state, without those of its clients."""
    return set(state_of(run_directory))


# ---- Messages ------------------------------------------------------------------------


def arrays_of(message):
    """Return the arrays of a message by their names."""
    return {k: a.numpy() for k, a in message.content.array_records["arrays"].items()}


def key_of(message, context):
    """Return the round, the phase and the partition-id of a message."""
    config = message.content.config_records["config"]
    return config.get("server-round"), config["phase"], context.node_config["partition-id"]


class Witness:
    """Passes messages on and keeps what went each way, by round, phase and client."""

    def __init__(self, answer=client_app):
        self.answer = answer
        self.down, self.up, self.metrics = {}, {}, {}

    def __call__(self, message, context):
        self._note_request(message, context)
        return self._noted(self.answer(message, context), key_of(message, context))

    @property
    def together(self):
        """Serves train messages of several clients in a cohort; None without the real app."""
        return self._serve_together if self.answer is client_app else None

    def _serve_together(self, messages, contexts, on_done):
        for message, context in zip(messages, contexts, strict=True):
            self._note_request(message, context)
        keys = map(key_of, messages, contexts)
        outcomes = train_together(messages, contexts, on_done)
        return [
            outcome if isinstance(outcome, Exception) else self._noted(outcome, key)
            for outcome, key in zip(outcomes, keys, strict=True)
        ]

    def _note_request(self, message, context):
        if "arrays" in message.content.array_records:
            self.down[key_of(message, context)] = arrays_of(message)

    def _noted(self, reply, key):
        self.up[key] = arrays_of(reply)
        self.metrics[key] = dict(reply.content.metric_records["metrics"])
        return reply

    def trained(self, server_round):
        """Return the clients that were asked to train in a round, ascending."""
        return sorted(n for t, phase, n in self.down if (t, phase) == (server_round, "train"))


def breaking(change, partition_id=1, phase="train", only_round=None, answer=client_app):
    """Serve as the real app does, but let `change` spoil some replies of one client, or raise."""

    def serve_message(message, context):
        reply = answer(message, context)
        server_round, of_phase, n = key_of(message, context)
        if (of_phase, n) == (phase, partition_id) and only_round in (None, server_round):
            change(reply)
        return reply

    return serve_message


def replacing(**arrays):
    """Return a change of a reply that sends these arrays instead of its own."""
    packed = {k: a if isinstance(a, Array) else Array(a) for k, a in arrays.items()}

    def change(reply):
        own = reply.content.array_records["arrays"]
        reply.content["arrays"] = ArrayRecord({**own, **packed})

    return change


def changing(change):
    """Return a change of a reply that sends what ``change(arrays)`` returns instead of its own."""
    return lambda reply: replacing(**change(arrays_of(reply)))(reply)


def raising(reason):
    """Return a change of a reply that loses it."""

    def change(reply):
        raise RuntimeError(reason)

    return change


def reply_with(arrays):
    """Return a reply of client 0, as strategies check and aggregate it."""
    return Reply(0, arrays, {})


def watched(monkeypatch, owner, name):
    """Let a method go on as it is; return a list that fills with (arguments, result) of calls."""
    original, calls = getattr(owner, name), []

    def spy(self, *arguments):
        result = original(self, *arguments)
        calls.append((arguments, result))
        return result

    monkeypatch.setattr(owner, name, spy)
    return calls


# ---- Data ----------------------------------------------------------------------------


def random_simplex(generator, *shape):
    """Draw probabilities: rows of random numbers that sum to 1."""
    return generator.dirichlet(np.ones(shape[-1]), size=shape[:-1])


def png(pixels):
    """Encode one image without loss; pixels are (height, width) or (height, width, 3)."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def image_rows(images):
    """Return images as the hub's Parquet files hold them."""
    return [{"bytes": png(image), "path": None} for image in images]


def write_parquet(path, images, labels, image="img", label="label"):
    """Write images and labels in the hub's layout; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pa.table({label: labels, image: image_rows(images)}), path)
    return path


def write_image_folder(path, images, labels):
    """Write images into one folder a class; return the folder above."""
    for position, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = path / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{position:04d}.png").write_bytes(png(image))
    return path


SUPERNET_OPERATIONS = "none,skip_connect,max_pool_3x3,sep_conv_3x3"
SMALLEST_SUPERNET = {
    "models": "darts", "supernet-channels": 2, "supernet-cells": 3, "supernet-nodes": 1,
    "supernet-stem-stride": 2, "supernet-operations": SUPERNET_OPERATIONS,
}  # fmt: skip
"""Settings of a supernet with two edges of four operations a cell."""

ONE_OF_EACH_EXCHANGE = {
    "fedavg", "feddf", "fedkma", "fedproto", "fml", "kt-pfl", "perfed-ckt", "persfl", "pfedhn",
    "scaffold",
}  # fmt: skip
"""Methods that the fast suite has of a proof which all methods go through."""


def most_of_them_slow(methods):
    """Return parameters: the methods above for the fast suite, all others for the slow proofs."""
    return [
        name if name in ONE_OF_EACH_EXCHANGE else pytest.param(name, marks=pytest.mark.slow)
        for name in methods
    ]
