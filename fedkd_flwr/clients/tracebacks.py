"""What is said of a failing client: all of it in the node's own log, little to the server.

Where server and nodes belong to one user, a reply names the class of an exception and its message,
and each distinct traceback is logged once. Elsewhere a message may hold file names or values of
private data. `failure_to_send` then leaves the class and a fixed sentence, with a code that finds
the details in the node's log.
"""

import secrets
import traceback
from logging import ERROR, WARNING

from fedkd_flwr.clients.policy import PolicyError
from strategies.core.flower import log

OUR_PACKAGES = ("fedkd_flwr", "strategies")
"""Exceptions that are defined here explain themselves and need no traceback."""

SENTENCES = {
    "ConfigError": "this node cannot use the run config",
    "DamagedLedgerError": "its ledger of releases is damaged",
    "DamagedMemoryError": "its memory of the run is damaged",
    "DataError": "its own data or the public set cannot be used",
    "DivergedError": "its training diverged",
    "ForgottenRunError": "it has removed its memory of the run (keep-runs)",
    "LostTeachersError": "it has lost teacher predictions of earlier rounds",
    "MemoryError": "it has too little memory",
    "NodeConfigError": "its node config cannot be used",
    "OSError": "it cannot read or write a file",
    "OutOfMemoryError": "it has too little memory",
    "CustomObjectError": "it cannot use a custom object",
    "SurplusNodeError": "it is surplus: its partition-id is none of the run's",
}
"""What leaves a node of an exception besides its class, by the name of the class or of a base."""

FAILED = "it failed"
"""What leaves a node of any other exception."""


class NodeFailureError(RuntimeError):
    """A failure as it leaves a node, without details."""


def failure_to_send(error: Exception, partition_id: object) -> NodeFailureError:
    """Log an exception with its traceback, and return what may leave the node.

    Parameters
    ----------
    error : Exception
        What was raised.
    partition_id : object
        The client, for the log.

    Returns
    -------
    NodeFailureError
        The name of the class, a fixed sentence, and a code that the log has too.
    """
    code = secrets.token_hex(3)
    log(ERROR, "Client %s failed, code %s:", partition_id, code)
    _log_lines(ERROR, error)
    return NodeFailureError(
        f"{_public_name(type(error))}: {_sentence(error)} (code {code} in the node's log)"
    )


def _sentence(error: Exception) -> str:
    if isinstance(error, PolicyError):
        return str(error)
    named = (SENTENCES.get(kind.__name__) for kind in type(error).__mro__ if _is_known(kind))
    return next((sentence for sentence in named if sentence), FAILED)


def _public_name(kind: type) -> str:
    """Return the name of an exception's class, or of its first base that is no custom code."""
    return next(base.__name__ for base in kind.__mro__ if _is_known(base))


def _is_known(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in (*OUR_PACKAGES, "builtins", "torch", "numpy")


class Tracebacks:
    """Logs the traceback of every distinct error once.

    Two errors are the same if they are of one class and were raised along the same lines of code.
    """

    def __init__(self) -> None:
        self._logged: set[tuple[object, ...]] = set()

    def log_once(self, error: Exception, partition_id: object) -> None:
        """Log an error's traceback, unless it was logged before or the error explains itself.

        Parameters
        ----------
        error : Exception
            What a client raised.
        partition_id : object
            The client.
        """
        if type(error).__module__.partition(".")[0] in OUR_PACKAGES:
            return
        frames = traceback.extract_tb(error.__traceback__)
        key = (type(error), *((frame.filename, frame.lineno) for frame in frames))
        if key in self._logged:
            return
        self._logged.add(key)
        log(
            WARNING,
            "Client %s failed. Its traceback (clients with the same one get one line each):",
            partition_id,
        )
        _log_lines(WARNING, error)


def _log_lines(level: int, error: Exception) -> None:
    """Log a traceback as one record per line: whatever filters a log by level shows all of them."""
    for line in "".join(traceback.format_exception(error)).splitlines():
        log(level, "%s", line)
