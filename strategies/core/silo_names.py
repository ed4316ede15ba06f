"""Names of silos for logs and tables: which are valid."""

import re

NAME = re.compile(r"[\w.-]([\w. -]{0,38}[\w.-])?")
"""A silo's name: up to 40 letters, digits, dots, dashes, underscores and spaces within."""


def valid_name(name: object) -> bool:
    """Return whether a silo may be called so."""
    return isinstance(name, str) and NAME.fullmatch(name) is not None and name.isprintable()
