"""The pages and the README: what they name exists, and their commands work."""

import ast
import os
import pkgutil
import re
import runpy
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from markdown.extensions import toc
from processes import new_environment, output_of

import fedkd_flwr
from fedkd_flwr.methods import METHODS

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)")
LOADED = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^\"'\s>]+"
)
"""Tags that make a browser load something from another machine."""


def first_block(text, language):
    return text.partition(f"```{language}\n")[2].partition("```")[0]


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_number_of_methods_is_that_of_the_registry():
    description = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"]
    for text in ((ROOT / "README.md").read_text(), description):
        assert set(re.findall(r"(\d+) methods and local", text)) == {str(len(METHODS) - 1)}


def api_pages():
    hooks = runpy.run_path(str(ROOT / "docs/site_hooks.py"))
    pages = "".join(page.read_text() for page in (ROOT / "pages/api").glob("*.md"))
    return hooks["on_page_markdown"](pages, SimpleNamespace(file=SimpleNamespace(src_uri="api")))


def test_the_api_pages_show_every_module_of_the_server():
    shown = f"{api_pages()}\n"
    modules = {path.stem for path in (ROOT / "strategies").glob("[a-z]*.py")}
    assert {name for name in modules if f"::: strategies.{name}\n" not in shown} == set()


def test_the_site_shows_the_files_themselves():
    """A copy of a file would show what it said once."""
    own = {"api", "benchmark-table.md", "site.css", "sort.js"}
    entries = [page for page in (ROOT / "pages").iterdir() if page.name not in own]
    assert entries and all(page.is_symlink() and page.exists() for page in entries)


def test_what_the_api_pages_show_is_there():
    pages = api_pages()
    for name in re.findall(r"^::: (\S+)", pages, re.MULTILINE):
        pkgutil.resolve_name(name)
    public = re.findall(r"^::: (\S+)\n.*\n +heading: fedkd_flwr\.(\w+)", pages, re.MULTILINE)
    for name, shown_as in public:
        assert pkgutil.resolve_name(name) is getattr(fedkd_flwr, shown_as)
    names = {shown_as for _, shown_as in public} | {"METHODS", "__version__", "plots"}
    assert names == set(fedkd_flwr.__all__)


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2]
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*.md")]
    assert pages
    names = [str(page.relative_to(ROOT)) for page in pages]
    assert [name for name in names if name not in navigation] == []


def test_the_method_of_the_tutorial_trains(small, tmp_path, monkeypatch):
    source = first_block((ROOT / "docs/tutorials/compare-your-method.md").read_text(), "python")
    (tmp_path / "my_method.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    run = fedkd_flwr.run(small, strategy="my_method:mine", output_dir=tmp_path / "run")
    assert list(run.rounds["failures"]) == [0] * len(run.rounds)
    assert run.rounds["bytes_up"].min() > 0
    assert (run.matrices["coefficients"][-1].sum(axis=1) > 0).all()


def test_every_package_is_in_the_table_of_the_architecture():
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    packages = {init.parent.name for init in (ROOT / "fedkd_flwr").glob("*/__init__.py")}
    table = page.partition("## Packages")[2].partition("\n## ")[0]
    assert {name for name in packages if f"{name}/`" not in table} == set()


@cache
def anchors(page):
    names: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE):
        toc.unique(toc.slugify(heading.replace("`", ""), "-"), names)
    return names


def broken_links(page):
    for target in LINK.findall(page.read_text()):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if "://" in target or target.startswith("mailto:"):
            continue
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            yield f"{page.relative_to(ROOT)}: {target}"


def test_links_lead_to_files_and_headings():
    folders = ("docs/**", "results", ".github/**")
    pages = [*ROOT.glob("*.md"), *(page for name in folders for page in ROOT.glob(f"{name}/*.md"))]
    assert [link for page in pages for link in broken_links(page)] == []


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere_and_ships_no_code(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert (tmp_path / "docs" / "how-to" / "compare" / "index.html") in pages
    assert {tag for page in pages for tag in LOADED.findall(page.read_text())} == set()
    shipped = {path.suffix for path in tmp_path.rglob("*")} | {p.name for p in tmp_path.rglob("*")}
    assert shipped & {".py", ".pyc", ".xz", ".jsonl", "__pycache__"} == set()
    notebook = (tmp_path / "notebooks" / "coefficient_matrix" / "index.html").read_text()
    assert "<math " in notebook and r"\sum" not in notebook
    table = (tmp_path / "benchmark-table" / "index.html").read_text()
    assert table.count("<tr>") == len(
        (ROOT / "results/tables/benchmark.csv").read_text().splitlines()
    )


@pytest.mark.slow
def test_the_comparison_of_the_tutorial_works_in_a_clone(tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    tutorial = (ROOT / "docs" / "tutorials" / "compare-your-method.md").read_text()
    (clone / "my_method.py").write_text(first_block(tutorial, "python"))
    sweep = first_block(tutorial, "toml")
    # A seed of two short rounds is enough to see that the commands work.
    preset = 'preset = "conf/compare/digits-mixed.toml"'
    size = "num-server-rounds = 2\nlocal-iterations = 2"
    smaller = {"[0, 1, 2, 3, 4]": "[0]", preset: f"{preset}\n{size}"}
    for full, short in smaller.items():
        assert full in sweep
        sweep = sweep.replace(full, short)
    (clone / "mine.toml").write_text(sweep)
    commands = [c for c in blocks(tutorial, "bash") if "mine.toml" in c or "compare runs/mine" in c]
    assert len(commands) == 2
    # Not the programs of this environment: those of whoever has just cloned it.
    programs = str(Path(sys.executable).parent)
    new_environment(clone / ".venv", "--editable", clone)
    inherited = {"VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHONPATH"}
    env = {name: value for name, value in os.environ.items() if name not in inherited}
    env["PATH"] = os.pathsep.join(p for p in env["PATH"].split(os.pathsep) if p != programs)
    # `uv run` takes the environment as it is; CI has made one for this project with `uv run`.
    env["UV_NO_SYNC"] = "1"
    printed = output_of("bash", "-c", " && ".join(map(str.strip, commands)), env=env, cwd=clone)
    rows = set(re.findall(r"^\| (\S+) \|", printed, re.MULTILINE))
    assert {"kt-pfl", "my_method:mine", "local"} <= rows
    assert list((clone / "figures").glob("*.png"))


# ---- Messages that the troubleshooting page quotes -----------------------------------


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
