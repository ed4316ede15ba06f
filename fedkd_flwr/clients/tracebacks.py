"""Tracebacks of failing clients, each logged once, on the machine where the client runs.

A reply names the class of an exception and its message. The file and the line stay here.
"""

import traceback
from logging import WARNING

from strategies.core.flower import log

OUR_PACKAGES = ("fedkd_flwr", "strategies")
"""Exceptions that are defined here explain themselves and need no traceback."""


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
        # One record per line: whatever filters a log by level shows all of them.
        for line in "".join(traceback.format_exception(error)).splitlines():
            log(WARNING, "%s", line)
