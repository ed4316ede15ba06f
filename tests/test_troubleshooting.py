"""The messages that the troubleshooting page quotes are those of the code."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
OF_OTHERS = {
    "Flower": (
        "SuperLink connection",
        "Runtime task-token authentication failed",
        "ClientApp stopped responding",
        "The Flower App directory name",
    ),
    "the operating system": ("(No space left on device)",),
    "pydantic": ("it should be greater than or equal to",),
    "several texts of the project": (
        "exchanges predictions on public samples; set public-dataset",
        "is not one of in-process, simulation or",
    ),
}
"""Quoted texts that are no single text of the code, by origin."""
FEWEST_WORDS = 3
"""Shorter pieces of a message are found anywhere."""


def texts_of_the_code():
    """Return every text of the packages, with … for what an f-string fills in."""
    texts = []
    for package in ("fedkd_flwr", "strategies"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
                    texts.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value.replace("%d", "…"))
    return "\n".join(texts)


def pieces_of_the_page():
    """Return the pieces of quoted messages between the parts that differ."""
    page = (ROOT / "docs/how-to/troubleshooting.md").read_text().partition("## Results look")[0]
    cells = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| ")]
    quoted = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    pieces = [piece.strip(" '.,;:") for text in quoted for piece in text.split("…")]
    return [piece for piece in pieces if len(piece.split()) >= FEWEST_WORDS]


def test_quoted_messages_are_those_of_the_code():
    texts = texts_of_the_code()
    elsewhere = [text for group in OF_OTHERS.values() for text in group]
    pieces = pieces_of_the_page()
    assert len(pieces) > 40
    unknown = [p for p in pieces if p not in texts and not any(text in p for text in elsewhere)]
    assert unknown == []
