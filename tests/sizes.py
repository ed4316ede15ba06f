"""Sizes of the project, so that they are counted the same way each time: ``python -m tests.sizes``.

Counted are tracked files that exist, without symbolic links. Words are what spaces separate.
"""

import re
import subprocess
from collections import Counter
from pathlib import Path

from tests import message_path

ROOT = Path(__file__).parents[1]
PYTHON = {
    "both packages": ("fedkd_flwr/", "strategies/"),
    "tests": ("tests/",),
    "docs": ("docs/",),
    "benchmarks": ("benchmarks/",),
    "results": ("results/",),
}
"""Folders whose lines of Python are counted together."""

NUMBER = re.compile(r"\d[\d.,]*")


def tracked_files():
    """Return the paths of all tracked files that exist, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [path for path in listed.stdout.split("\0") if path and (ROOT / path).exists()]


def text_of(path):
    """Return a file's text, empty for a symbolic link: its target is counted."""
    file = ROOT / path
    return "" if file.is_symlink() else file.read_text()


def lines_of_python(paths, folders):
    return sum(
        text_of(path).count("\n")
        for path in paths
        if path.startswith(folders) and path.endswith(".py")
    )


def section_of(page):
    """Return what a page belongs to: a folder of docs, another folder, or its own name."""
    folder, _, rest = page.partition("/")
    return f"docs/{rest.partition('/')[0]}" if folder == "docs" else folder


def is_generated(text):
    """Return whether a page's first line says that a command wrote it."""
    return "generated" in text.partition("\n")[0]


def prose_of(text):
    """Return a page's text without code blocks, tables, the targets of links, and comments."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", text)


def rows():
    paths = tracked_files()
    for name, folders in PYTHON.items():
        yield f"lines of Python, {name}", lines_of_python(paths, folders)
    yield "tracked files", len(paths)
    presets = [path for path in paths if path.startswith("conf/") and path.endswith(".toml")]
    in_sweeps = sum(path.startswith("conf/sweeps/") for path in presets)
    yield "TOML files in conf/, without sweeps", len(presets) - in_sweeps
    yield "TOML files in conf/sweeps/", in_sweeps
    pages = {path: text for path in paths if path.endswith(".md") and (text := text_of(path))}
    by_section = Counter()
    for path, text in pages.items():
        by_section["generated" if is_generated(text) else section_of(path)] += len(text.split())
    yield "words of Markdown", by_section.total()
    yield "words of Markdown by hand", by_section.total() - by_section["generated"]
    for section, words in by_section.most_common():
        yield f"words of Markdown, {section}", words
    longest = max(
        (path for path in pages if not is_generated(pages[path])),
        key=lambda path: len(pages[path].split()),
    )
    yield f"words of the longest page by hand, {longest}", len(pages[longest].split())
    readme = pages["README.md"]
    yield "lines of README", readme.count("\n")
    yield "words of README", len(readme.split())
    yield "numbers in README", len(NUMBER.findall(readme))
    yield "numbers in README, in prose", len(NUMBER.findall(prose_of(readme)))


def main():
    for name, size in rows():
        print(f"{size:>9,}  {name}")
    message_path.main(())


if __name__ == "__main__":
    main()
