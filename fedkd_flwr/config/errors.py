"""The error of an invalid run config."""


class ConfigError(ValueError):
    """An invalid run config; the message is one sentence for the user."""
