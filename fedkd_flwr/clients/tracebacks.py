"""What is said of a failing client: all of it in the node's own log, little to the server.

Where both belong to one user, an exception in own code stops the run. Elsewhere a message may hold
values of private data, so that a reply has its class, a fixed sentence and a code in the node's
log.
"""

import re
import secrets
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from logging import ERROR, WARNING
from pathlib import Path
from types import FrameType, TracebackType

from flwr.app import Message

import strategies
from fedkd_flwr.clients.policy import PolicyError
from fedkd_flwr.custom_objects.importing import INSTALLED, OURS
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.training.loop import DivergedError
from strategies.core.flower import log
from strategies.core.replies import shortened

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
    "UndeclaredError": "its method sends what it does not declare",
    "SurplusNodeError": "it is surplus: its partition-id is none of the run's",
}
"""What leaves a node of an exception besides its class, by the name of the class or of a base."""

FAILED = "it failed"
"""What leaves a node of any other exception."""

NOT_OWN = (
    str(Path(__file__).parents[1]),
    str(Path(strategies.__file__).parent),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")),
)
"""Folders of this project's packages and of the standard library."""

IN_OWN_CODE = re.compile(r"^(?:.*: )?Client (\d+) failed in own code: (.*?)(?:'>)?$", re.MULTILINE)
"""How a simulation tells the server of a `ClientCodeError`."""


class ClientCodeError(RuntimeError):
    """A failure of the user's own code in a client, which stops the run.

    In one process the failure is the cause, and the traceback ends in the user's code.
    """


def stop_at_own_code(failures: Mapping[int, Exception]) -> None:
    """Stop the run if a client failed in the user's code; what clients raised, by partition-id."""
    own = {n: error for n, error in failures.items() if traceback_of_own_code(error)}
    if not own:
        return
    first = own[min(own)]
    error = _code_error({n: _described(error) for n, error in own.items()})
    raise error.with_traceback(traceback_of_own_code(first)) from first


def stop_at_reported_failures(replies: Iterable[Message]) -> None:
    """Stop a simulation if one of the replies tells of a failure in the user's code."""
    reasons = (reply.error.reason or "" for reply in replies if reply.has_error())
    found = (match for reason in reasons if (match := IN_OWN_CODE.search(reason)))
    if failed := {int(match[1]): match[2] for match in found}:
        raise _code_error(failed)


def code_failure(error: Exception, partition_id: object) -> str:
    """Return the line that tells of a failure in the user's code; `IN_OWN_CODE` reads it."""
    return f"Client {partition_id} failed in own code: {_described(error)}"


def traceback_of_own_code(error: Exception) -> TracebackType | None:
    """Return the traceback of an exception, or of its cause, from the user's first frame on.

    None if no frame is outside of this project and installed libraries, and for divergence and
    unreadable data.
    """
    if isinstance(error, DivergedError | DataError):
        return None
    raised: BaseException | None = error
    while raised:
        frames = raised.__traceback__
        while frames:
            if _is_own_code(frames.tb_frame):
                return frames
            frames = frames.tb_next
        raised = raised.__cause__
    return None


def _is_own_code(frame: FrameType) -> bool:
    file = Path(frame.f_code.co_filename)
    if not file.is_absolute():  # typed at a prompt, or compiled into a library
        return frame.f_globals.get("__name__") == "__main__"
    return not (set(INSTALLED) & set(file.parts) or any(map(file.is_relative_to, NOT_OWN)))


def _described(error: Exception) -> str:
    """Return an exception in one line, with the user's last line of code that it passed."""
    passed = traceback.walk_tb(traceback_of_own_code(error))
    code, line = [(frame.f_code, line) for frame, line in passed if _is_own_code(frame)][-1]
    where = f"{Path(code.co_filename).name}, line {line}, in {code.co_name}"
    return f"{type(error).__name__}: {shortened(error)} ({where})"


def _code_error(reasons: Mapping[int, str]) -> ClientCodeError:
    """Return the error for clients that failed in own code, by partition-id; equal ones in one."""
    reason = reasons[min(reasons)]
    alike = [str(n) for n in sorted(reasons) if reasons[n] == reason]
    who = "Client" if len(alike) == 1 else "Clients"
    others = len(reasons) - len(alike)
    more = f"; {others} more failed otherwise" if others else ""
    return ClientCodeError(
        f"{who} {', '.join(alike)} failed in own code: {reason}{more}. Correct the code, or set "
        "on-client-error=drop to go on without the replies of clients that fail."
    )


class NodeFailureError(RuntimeError):
    """A failure as it leaves a node, without details."""


def failure_to_send(error: Exception, partition_id: object) -> NodeFailureError:
    """Log an exception of a client; return its class, a fixed sentence, and a code in the log."""
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
    return kind.__module__.partition(".")[0] in (*OURS, "builtins", "torch", "numpy")


class Tracebacks:
    """Logs the traceback of every distinct error once, by class and lines of code."""

    def __init__(self) -> None:
        self._logged: set[tuple[object, ...]] = set()

    def log_once(self, error: Exception, partition_id: object) -> None:
        """Log an error's traceback, unless it was logged before or the error explains itself."""
        if type(error).__module__.partition(".")[0] in OURS:
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
