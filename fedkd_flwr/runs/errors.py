"""What can be wrong with a run directory."""


class RunDirectoryError(OSError):
    """A run directory that cannot be written or read; the message is one sentence."""


class DamagedRunError(RunDirectoryError):
    """A run directory with a file that cannot be read; the message names it, and the remedy."""
