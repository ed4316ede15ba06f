"""Hooks of MkDocs: formulas as MathML, wide pages of results, and the benchmark as one table."""

import csv
import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

_MARKDOWN_CELL = re.compile(r'<div class="[^"]*jp-MarkdownOutput[^"]*"[^>]*>.*?</div>', re.DOTALL)
_FORMULA = re.compile(r"\$\$(?P<block>[^$]+)\$\$|\$(?P<inline>[^$]+)\$")
_TABLE = re.compile(r"<!-- table: (?P<path>\S+) -->")
_METHODS = "<!-- modules of methods -->"
_ROOT = Path(__file__).parent.parent
_WIDE = ("results/", "docs/reference/methods.md", "docs/reference/disclosure")
"""Pages that are mostly tables, whose first column has names."""


def _as_mathml(formula: re.Match[str]) -> str:
    """Return a formula between dollar signs as MathML, which needs no script."""
    if formula["block"]:
        return convert(html.unescape(formula["block"]), display="block")
    return convert(html.unescape(formula["inline"]))


def _as_table(comment: re.Match[str]) -> str:
    """Return a CSV file as a table that a click on a heading sorts."""
    with (_ROOT / comment["path"]).open(newline="") as file:
        head, *rows = csv.reader(file)
    headings = "".join(f"<th>{html.escape(cell.replace('_', ' '))}</th>" for cell in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows
    )
    return f"<table>\n<thead><tr>{headings}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"


def modules_of_methods() -> str:
    """Return what shows the server side of each method, a module each."""
    from fedkd_flwr.methods import METHODS

    modules = sorted({method.strategy_name.partition(":")[0] for method in METHODS.values()})
    return "\n\n".join(f"::: {module}" for module in modules)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Give pages of tables the width of the table of contents, and insert tables and modules."""
    if page.file.src_uri.startswith(_WIDE):
        page.meta.setdefault("hide", ["toc"])
    return _TABLE.sub(_as_table, markdown.replace(_METHODS, modules_of_methods()))


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Mark pages of tables, and replace the LaTeX formulas in the text cells of notebooks."""
    if page.file.src_uri.startswith(_WIDE):
        return f'<div class="wide">\n{content}\n</div>'
    if not page.file.src_uri.endswith(".ipynb"):
        return content
    return _MARKDOWN_CELL.sub(lambda cell: _FORMULA.sub(_as_mathml, cell[0]), content)
