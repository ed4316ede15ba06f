"""Flower's private names that the project uses, imported only here.

Public modules are ``flwr.app``, ``flwr.client``, ``flwr.clientapp``, ``flwr.serverapp``,
``flwr.serverapp.strategy`` and ``flwr.simulation``. Each name below is loaded on first use, because
no process needs all of them.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.cli.constant import LOCAL_SUPERLINK_HTTP_API_PORT as LOCAL_SUPERLINK_HTTP_API_PORT
    from flwr.common.config import parse_config_args as parse_config_args
    from flwr.common.constant import ErrorCode as ErrorCode
    from flwr.supercore import log as log
    from flwr.supercore.run import Run as Run
    from flwr.supercore.task_identity import TaskIdentity as TaskIdentity
    from flwr.supercore.utils import get_flwr_home as get_flwr_home
    from flwr.superlink.grid import InMemoryGrid as InMemoryGrid

HOMES = {
    "ErrorCode": "flwr.common.constant",
    "InMemoryGrid": "flwr.superlink.grid",
    "LOCAL_SUPERLINK_HTTP_API_PORT": "flwr.cli.constant",
    "Run": "flwr.supercore.run",
    "TaskIdentity": "flwr.supercore.task_identity",
    "get_flwr_home": "flwr.supercore.utils",
    "log": "flwr.supercore",
    "parse_config_args": "flwr.common.config",
}
"""The module of each name."""


class FlowerMovedError(ImportError):
    """A private name of Flower that has moved."""


def __getattr__(name: str) -> Any:
    """Load a private name of Flower.

    Raises
    ------
    FlowerMovedError
        If the installed version has moved or removed it.
    """
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        part = getattr(import_module(HOMES[name]), name)
    except (ImportError, AttributeError) as error:
        raise FlowerMovedError(
            f"Flower {version('flwr')} has no {HOMES[name]}.{name} ({error}): correct HOMES in "
            f"{__name__}, or install a supported version of Flower."
        ) from error
    globals()[name] = part
    return part
