"""Flower's log, and the private names of Flower that the project uses, imported only here.

Public modules are ``flwr.app``, ``flwr.client``, ``flwr.clientapp``, ``flwr.serverapp``,
``flwr.serverapp.strategy`` and ``flwr.simulation``. Each name below is loaded on first use, because
no process needs all of them.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from typing import Any

from strategies.core.printable_text import PrintableMessages

HOMES = {
    "AutoExecPlugin": "flwr.supercore.superexec.plugin",
    "ErrorCode": "flwr.common.constant",
    "InMemoryGrid": "flwr.superlink.grid",
    "LOCAL_SUPERLINK_HTTP_API_PORT": "flwr.cli.constant",
    "NodeInfo": "flwr.proto.node_pb2",
    "Run": "flwr.supercore.run",
    "TASK_TYPE_TO_COMMAND": "flwr.supercore.constant",
    "TaskIdentity": "flwr.supercore.task_identity",
    "TaskType": "flwr.supercore.constant",
    "filter_paths_for_publish": "flwr.cli.utils",
    "flower_superexec": "flwr.supercore.cli",
    "flwr_clientapp": "flwr.supernode.cli",
    "get_fab_metadata": "flwr.cli.config_utils",
    "get_flwr_home": "flwr.supercore.utils",
    "parse_config_args": "flwr.common.config",
    "ProtoRecordDict": "flwr.common.serde",
    "recorddict_from_proto": "flwr.common.serde",
    "recorddict_to_proto": "flwr.common.serde",
}
"""The module of each name."""

REPLACED = {
    "get_load_client_app_fn": "flwr.supernode.runtime.run_clientapp",
    "install_from_fab": "flwr.supernode.runtime.run_clientapp",
    "subprocess": "flwr.supercore.superexec.executor.subprocess_executor",
}
"""The module that uses each name that the project replaces by its own (`fedkd_flwr.bundles`)."""


# Flower sets up its logger when it is loaded: level, format and colors.
import_module("flwr.app")
LOGGER = logging.getLogger("flwr")
# Reasons of clients and names in files of others are logged; a terminal would obey their escapes.
LOGGER.addFilter(PrintableMessages())
log = LOGGER.log  # logs a message at a level: ``log(WARNING, "Client %d is absent", 3)``


@contextmanager
def root_log_as_it_is() -> Iterator[None]:
    """Keep a library's `logging.warning` from setting up the root logger, which repeats lines."""
    nowhere = logging.NullHandler()
    logging.root.addHandler(nowhere)
    try:
        yield
    finally:
        logging.root.removeHandler(nowhere)


class FlowerMovedError(ImportError):
    """A private name of Flower that has moved."""


def __getattr__(name: str) -> Any:
    """Load a private name of Flower. Raises `FlowerMovedError` if it has moved."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    part = _found(HOMES[name], name, "HOMES")
    globals()[name] = part
    return part


def replaced(name: str) -> Any:
    """Return what a name of `REPLACED` is now."""
    return _found(REPLACED[name], name, "REPLACED")


def replace(name: str, replacement: Any) -> None:
    """Replace a name of `REPLACED` in the module of Flower that uses it."""
    replaced(name)
    setattr(import_module(REPLACED[name]), name, replacement)


def set_message_id(message: Any, message_id: str) -> None:
    """Set a message's id as Flower's own grids do when they send it; `Message` has no setter."""
    message.metadata.__dict__["_message_id"] = message_id


def _found(home: str, name: str, table: str) -> Any:
    try:
        return getattr(import_module(home), name)
    except (ImportError, AttributeError) as error:
        raise FlowerMovedError(
            f"Flower {version('flwr')} has no {home}.{name} ({error}): correct {table} in "
            f"{__name__}, or install a supported version of Flower."
        ) from error
