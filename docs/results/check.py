"""Check that tables and the numbers in sentences are those of the published runs.

    python docs/results/check.py            # lists what is wrong; exit status 1
    python docs/results/check.py --write    # makes the tables again

A table of a page stands between two comments, each on a line of its own::

    <!-- from: tables.table transfer/kt-pfl columns=accuracy,gain -->
    …
    <!-- end -->

The first word is a module next to the page or next to this script, and a function; the others are
its arguments. Each number of a sentence on a results page or in the README has to be in a table of
that page, in the settings of the runs of its tables, or in `claims.toml`. A gain has a sign, and an
interval follows it. A claim is computed again if it has a ``call``, a function of `claims.py`;
others name their ``source``. Sentences that say a value in words, such as over which methods a lead
is shown, stand in the claim as ``sentences``.
"""

import functools
import importlib.util
import re
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BLOCK = re.compile(r"^(<!-- from: ([^>]+?) -->)\n(.*?)^(<!-- end -->)$", re.DOTALL | re.MULTILINE)
MINUS = "\N{MINUS SIGN}"
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)

if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

# ---- Tables ----------------------------------------------------------------------------


@functools.cache
def load_module(name: str, folder: Path) -> ModuleType:
    """Import a script next to a page, or else next to this file."""
    for path in (folder / f"{name}.py", HERE / f"{name}.py"):
        if path.exists():
            break
    else:
        raise FileNotFoundError(f"There is no {name}.py in {folder} or {HERE}.")
    if path.parent == HERE:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(f"{folder.name}_{name}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generated(call: str, folder: Path) -> str:
    """Return the text of a call on a page in a folder."""
    target, *words = shlex.split(call)
    module, _, function = target.partition(".")
    text: str = getattr(load_module(module, folder), function)(*words)
    return f"\n{text.strip()}\n\n"


def filled(page: Path) -> tuple[str, list[str]]:
    """Return a page with all tables made again, and the calls whose text differed."""
    differing = []

    def fill(match: re.Match[str]) -> str:
        opening, call, content, end = match.groups()
        text = generated(call, page.parent)
        if text != content:
            differing.append(call)
        return f"{opening}\n{text}{end}"

    return BLOCK.sub(fill, page.read_text()), differing


# ---- Sentences -------------------------------------------------------------------------

NUMBER = re.compile(r"(?<![\w.,/^-])[+\u2212-]?\d[\d,]*(?:\.\d+)?(?![\w/^-])")
UNCHECKED = re.compile(
    r"```.*?```|`[^`]*`|\]\([^)]*\)|^#.*?$|^---\n.*?^---$|"
    r"\b(?:Tables?|Eqs?\.|Figs?\.|arXiv:|Non-IID|[Ss]tage|[Mm]anner|Part|C =) ?"
    r"[\d.]+(?:(?:, | and | to |-)\d+)*",
    re.DOTALL | re.MULTILINE,
)
"""Code, targets of links, headings, front matter, and numbers that are names."""


def numbers(text: str) -> set[str]:
    """Return the numbers of a text, without signs and separators."""
    return {
        found.lstrip(f"+-{MINUS}").replace(",", "").rstrip(".") for found in NUMBER.findall(text)
    }


def sentences(text: str) -> str:
    """Return a page without tables that are generated, code and comments."""
    return COMMENT.sub(" ", UNCHECKED.sub(" ", BLOCK.sub(" ", text)))


def known_numbers(page: Path) -> set[str]:
    """Return the numbers of a page's tables, of the settings of their runs, and of its claims."""
    found: set[str] = set()
    for match in BLOCK.finditer(page.read_text()):
        found |= numbers(match[3])
        for word in shlex.split(match[2])[1:]:
            found |= _numbers_of_settings(word)
    for claim in claims():
        if ROOT / claim["page"] == page and "sentences" not in claim:
            found |= numbers(claim["value"])
    return found


@functools.cache
def _numbers_of_settings(name: str) -> set[str]:
    """Return the numbers among the settings of a set's runs; none if there is no such set."""
    runs = importlib.import_module("runs")
    if name not in runs.set_names():
        return set()
    texts = {str(value) for run in runs.read_set(name) for value in run.settings.values()}
    texts |= {part for text in texts for part in text.split("/")}
    return {text.removesuffix(".0") for text in texts} | texts


def unsupported(page: Path) -> list[str]:
    """Return the numbers of a page's sentences that nothing supports."""
    return sorted(numbers(sentences(page.read_text())) - known_numbers(page))


GAIN = re.compile(r"(?<![\w.])[+\u2212-]\d+\.\d+")
"""A gain: a number with a sign."""

INTERVAL = re.compile(r"\([+\u2212-]?[\d.]+%? to [+\u2212-]?[\d.]+%?\)")
"""A 95% interval behind a gain."""


def without_interval(page: Path) -> list[str]:
    """Return the gains in a page's sentences that no interval follows."""
    lines = sentences(page.read_text()).splitlines()
    text = "\n".join(line for line in lines if not line.startswith("|"))
    with_interval = re.compile(rf"{GAIN.pattern}%? {INTERVAL.pattern}")
    return GAIN.findall(INTERVAL.sub("", with_interval.sub("", text)))


# ---- Claims ----------------------------------------------------------------------------


@functools.cache
def claims() -> list[dict[str, Any]]:
    """Return all claims."""
    found: list[dict[str, Any]] = tomllib.loads((HERE / "claims.toml").read_text())["claim"]
    return found


def wrong(claim: dict[str, Any]) -> str:
    """Return what is wrong with a claim, or an empty text."""
    if {"call", "source"}.isdisjoint(claim):
        return "has neither a call nor a source"
    if "call" in claim:
        function, *words = shlex.split(claim["call"])
        try:
            value = getattr(importlib.import_module("claims"), function)(*words)
        except ValueError as error:  # a run that it names is not there
            return f"cannot be computed: {error}"
        if value != claim["value"]:
            again = ", so read its sentences again" if "sentences" in claim else ""
            return f"says {claim['value']}, the runs say {value}{again}"
    text = BLOCK.sub(" ", (ROOT / claim["page"]).read_text())
    text = " ".join(text.replace(MINUS, "-").split())
    for words in claim.get("sentences", [claim["value"]]):
        if words not in text:
            return f"is not in the sentences of {claim['page']}, which lack {words}"
    return ""


# ---- The command -----------------------------------------------------------------------


def pages() -> list[Path]:
    """Return the Markdown files that may contain tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def results_pages() -> list[Path]:
    """Return the pages whose sentences are checked."""
    return [ROOT / "README.md", *sorted(HERE.rglob("*.md"))]


def main(options: list[str]) -> int:
    """Check or update all pages, and return the exit status."""
    problems = []
    for page in pages():
        text, differing = filled(page)
        name = page.relative_to(ROOT)
        if differing and "--write" in options:
            page.write_text(text)
            print(f"{name}: {len(differing)} updated")
        elif differing:
            problems += [f"{name}: {call} differs from the runs" for call in differing]
    for page in results_pages():
        for number in unsupported(page):
            problems.append(
                f"{page.relative_to(ROOT)}: {number} is in no table, setting or claim of the page"
            )
        for gain in without_interval(page):
            problems.append(f"{page.relative_to(ROOT)}: {gain} stands without its interval")
    for claim in claims():
        if problem := wrong(claim):
            problems.append(f"claims.toml: {claim['id']} {problem}")
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
