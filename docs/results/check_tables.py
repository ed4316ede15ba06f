"""Check that every table, and every number in a sentence, agrees with its JSON file.

    python docs/results/check_tables.py            # lists differences; exit status 1
    python docs/results/check_tables.py --write    # regenerates everything

The text between two comments in a Markdown file is the return value of a function::

    <!-- from: tables.comparison transfer/kt-pfl.json --> … <!-- end -->

The first word is the module, next to the page or next to this script, and the function. The other
words are the arguments. An argument that names a file next to the page is passed as its path.
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
    """Import a script next to a page, or else next to this file."""
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
    """Return the generated text of a call on a page.

    Parameters
    ----------
    call : str
        ``MODULE.FUNCTION ARGUMENT...``, quoted as in a shell.
    folder : Path
        The folder of the page.
    """
    target, *words = shlex.split(call)
    module, _, function = target.partition(".")
    paths = [folder / word for word in words]
    arguments = [p if p.is_file() else w for p, w in zip(paths, words, strict=True)]
    text: str = getattr(load_module(module, folder), function)(*arguments)
    # A table needs empty lines around it; a number is part of its sentence.
    return f"\n\n{text.strip()}\n\n" if "\n" in text else text


def filled(page: Path) -> tuple[str, list[str]]:
    """Return a page with all generated text updated, and the calls whose text differed."""
    differing = []

    def fill(match: re.Match[str]) -> str:
        opening, call, content, end = match.groups()
        text = generated(call, page.parent)
        if text != content:
            differing.append(call)
        return f"{opening}{text}{end}"

    return GENERATED.sub(fill, page.read_text()), differing


def pages() -> list[Path]:
    """Return the Markdown files that may contain generated text."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main(options: list[str]) -> int:
    """Check or update all pages, and return the exit status."""
    status = 0
    for page in pages():
        text, differing = filled(page)
        if not differing:
            continue
        name = page.relative_to(ROOT)
        if "--write" in options:
            page.write_text(text)
            print(f"{name}: {len(differing)} updated")
            continue
        status = 1
        print(*(f"{name}: {call} differs from its file" for call in differing), sep="\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
