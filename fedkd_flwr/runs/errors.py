"""Errors about run directories."""


class RunDirectoryError(OSError):
    """A run directory that cannot be written or read; the message is one sentence."""


class CodeNotNamedError(RunDirectoryError):
    """A run directory that names code which the user has not named; nothing was imported."""


class DamagedRunError(RunDirectoryError):
    """A run directory with an unreadable file; the message names the file and the remedy."""
