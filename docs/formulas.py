"""Hook of MkDocs: show formulas of notebooks as MathML, which needs no script."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

_MARKDOWN_CELL = re.compile(r'<div class="[^"]*jp-MarkdownOutput[^"]*"[^>]*>.*?</div>', re.DOTALL)
_FORMULA = re.compile(r"\$\$(?P<block>[^$]+)\$\$|\$(?P<inline>[^$]+)\$")


def _as_mathml(formula: re.Match[str]) -> str:
    """Return a formula between dollar signs as MathML."""
    if formula["block"]:
        return convert(html.unescape(formula["block"]), display="block")
    return convert(html.unescape(formula["inline"]))


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Replace the LaTeX formulas in the text cells of a notebook's page."""
    if not page.file.src_uri.endswith(".ipynb"):
        return content
    return _MARKDOWN_CELL.sub(lambda cell: _FORMULA.sub(_as_mathml, cell[0]), content)
