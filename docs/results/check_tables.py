"""Hold every table, and every figure in a sentence, to the JSON file that it comes from.

    python docs/results/check_tables.py            # exits with 1 and names what differs
    python docs/results/check_tables.py --write    # writes all of it anew

What stands in a Markdown file between two remarks is the value of a function::

    <!-- from: tables.comparison transfer/kt-pfl.json --> … <!-- end -->

The function is named by its file, beside the page or beside this script, and its name; the words
after it are its arguments, those that name a file beside the page as paths.
"""

import functools
import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GENERATED = re.compile(r"(<!-- from: ([^>]+?) -->)(.*?)(<!-- end -->)", re.DOTALL)

if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))


@functools.cache
def load_module(name: str, folder: Path) -> ModuleType:
    """Return a script beside a page, or else beside this file, as a module."""
    found = [path for path in (folder / f"{name}.py", HERE / f"{name}.py") if path.exists()]
    if not found:
        raise FileNotFoundError(f"There is no {name}.py in {folder} or {HERE}.")
    spec = importlib.util.spec_from_file_location(
        f"{found[0].parent.name}_{found[0].stem}", found[0]
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generated(call: str, folder: Path) -> str:
    """Return what stands between the remarks of a call, on a page in a folder.

    Parameters
    ----------
    call : str
        ``MODULE.FUNCTION ARGUMENT...``, words quoted as in a shell.
    folder : Path
        The page's.
    """
    target, *words = shlex.split(call)
    module, _, function = target.partition(".")
    paths = [folder / word for word in words]
    arguments = [p if p.is_file() else w for p, w in zip(paths, words, strict=True)]
    text: str = getattr(load_module(module, folder), function)(*arguments)
    # A table needs an empty line on either side, a figure is part of its sentence.
    return f"\n\n{text.strip()}\n\n" if "\n" in text else text


def filled(page: Path) -> tuple[str, list[str]]:
    """Return a page with everything generated written anew, and the calls whose text differs."""
    differing = []

    def fill(match: re.Match[str]) -> str:
        opening, call, content, end = match.groups()
        text = generated(call, page.parent)
        if text != content:
            differing.append(call)
        return f"{opening}{text}{end}"

    return GENERATED.sub(fill, page.read_text()), differing


def pages() -> list[Path]:
    """Return the Markdown files of the repository that may hold results."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main(options: list[str]) -> int:
    """Check or write all pages; return the exit status."""
    status = 0
    for page in pages():
        text, differing = filled(page)
        if not differing:
            continue
        name = page.relative_to(ROOT)
        if "--write" in options:
            page.write_text(text)
            print(f"{name}: {len(differing)} written")
            continue
        status = 1
        print(*(f"{name}: {call} differs from its source" for call in differing), sep="\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
