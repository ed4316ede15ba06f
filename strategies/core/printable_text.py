"""Texts that others sent or recorded, before they reach a terminal or a log."""

import logging
import re
import unicodedata

DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that change the direction of a text."""


COLOR = re.compile(r"\x1b\[[0-9;]*m")
"""An escape sequence that sets the color or the weight of the text after it."""


def without_colors(line: str) -> str:
    """Return a line of Flower's output without the colors that Flower adds for a terminal."""
    return COLOR.sub("", line)


def printable(text: str) -> str:
    r"""Return a text with visible names for its control characters, except tab and line feed.

    A terminal obeys escape sequences, which can hide lines or forge them; so do characters that
    change the direction of a text.
    """
    if text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode() if _is_control(char) else char for char in text
    )


def _is_control(char: str) -> bool:
    if char in "\t\n":
        return False
    return char in DIRECTIONS or unicodedata.category(char) == "Cc"


class PrintableMessages(logging.Filter):
    """Makes the messages of a log printable."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the control characters of a message; keep every record."""
        record.msg, record.args = printable(record.getMessage()), ()
        return True
