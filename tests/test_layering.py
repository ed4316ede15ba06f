"""Imports run core ← base ← families ← methods ← app, without a circle."""

import ast
import sys
from graphlib import TopologicalSorter
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

from strategies.core import flower
from tests.sizes import rows

ROOT = Path(__file__).parent.parent
FAMILIES = {"parameters", "soft_predictions", "prototypes", "supernets", "clusters"}


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): path
    for package in ("strategies", "fedkd_flwr")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def loaded_nodes(body):
    """Yield the statements of a module that are not inside functions, those for types included."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        for field in ("body", "orelse", "finalbody", "handlers"):
            yield from loaded_nodes(getattr(node, field, []))


def modules_in(nodes):
    """Return the modules of this project that some statements import, by their full names."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found & MODULES.keys()


def imports_of(name):
    """Return the modules of this project that a module loads with itself, or for types."""
    return modules_in(loaded_nodes(ast.parse(MODULES[name].read_text()).body))


def all_imports_of(name):
    """Return the modules of this project that a module imports, inside functions too."""
    return modules_in(ast.walk(ast.parse(MODULES[name].read_text())))


def layer(name):
    """Return how high up a module of `strategies` stands."""
    if name.startswith("strategies.core"):
        return 0
    if name == "strategies.method":
        return 1
    if name == "strategies.base":
        return 2
    return 3 if name.removeprefix("strategies.") in FAMILIES else 4


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("strategies")])
def test_strategies_import_downwards(name):
    for imported in imports_of(name):
        assert layer(imported) <= layer(name), f"{name} imports {imported}"


def test_strategies_load_neither_torch_nor_the_app():
    for name in (name for name in MODULES if name.startswith("strategies")):
        for node in loaded_nodes(ast.parse(MODULES[name].read_text()).body):
            if isinstance(node, ast.Import):
                loaded = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                loaded = {node.module.partition(".")[0]}
            else:
                continue
            light = sys.stdlib_module_names | {"numpy", "flwr", "pydantic", "strategies"}
            assert loaded <= light, f"{name} loads {loaded - light}"


def test_no_module_imports_itself_in_a_circle():
    # A package's __init__ is loaded by each of its modules; what it imports is its own affair.
    graph = {name: all_imports_of(name) - {name} for name in MODULES}
    order = list(TopologicalSorter(graph).static_order())
    assert set(order) == set(MODULES)


def test_no_file_is_too_long_to_be_about_one_idea():
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: length for name, length in lengths.items() if length > 600} == {}


# `NamedTuple._fields` is documented.
PRIVATE_NAMES_IN = {
    "fedkd_flwr.data.storage": {"_fingerprint"},
    "fedkd_flwr.models.torch_internals": None,
    "fedkd_flwr.tuning.study": {"_trial_id"},
    "strategies.core.settings_groups": {"_fields"},
}


def private_names_of_others(name, defined):
    """Return the private names in a module that no module of this project defines."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
    return {x for x in found - defined if x.startswith("_") and not x.startswith("__")}


def test_private_names_of_other_libraries_stay_in_one_module_each():
    defined = set()
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                defined.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                defined.add(node.id)
    for name in MODULES:
        allowed = PRIVATE_NAMES_IN.get(name, set())
        if allowed is not None:
            assert private_names_of_others(name, defined) <= allowed, name


def test_the_analysis_prepares_what_the_plots_draw_and_the_report_shows():
    order = ["fedkd_flwr.analysis", "fedkd_flwr.plots", "fedkd_flwr.report"]
    for name in MODULES:
        own = ".".join(name.split(".")[:2])
        if own in order:
            loaded = {".".join(module.split(".")[:2]) for module in imports_of(name)}
            assert not loaded & {*order[order.index(own) + 1 :]}, name


# ---- Counts of lines and of a message's files ----------------------------------------


def test_sizes_are_counted():
    found = dict(rows())
    assert 10_000 < found["lines of Python, both packages"] < 100_000
    by_section = [v for name, v in found.items() if name.startswith("words of Markdown, ")]
    assert sum(by_section) == found["words of Markdown"] > found["words of README"] > 0
    assert 0 < found["numbers in README, in prose"] < found["numbers in README"]


# ---- Flower's own parts --------------------------------------------------------------


PUBLIC = ("flwr.app", "flwr.client", "flwr.clientapp", "flwr.simulation")
PUBLIC += ("flwr.serverapp", "flwr.serverapp.strategy")


def imported_from_flower(name):
    """Return (module, what) of every import of Flower in a module, wherever it stands."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {(node.module, alias.name) for alias in node.names}
    return {(module, what) for module, what in found if module.partition(".")[0] == "flwr"}


@pytest.mark.parametrize("name", flower.HOMES)
def test_private_names_of_flower_exist(name):
    assert getattr(flower, name) is getattr(import_module(flower.HOMES[name]), name)


@pytest.mark.parametrize("home", ["flwr.supercore.elsewhere", "flwr.app"])
def test_a_moved_name_of_flower_is_reported(home, monkeypatch):
    monkeypatch.delitem(vars(flower), "Run", raising=False)
    monkeypatch.setitem(flower.HOMES, "Run", home)
    with pytest.raises(
        flower.FlowerMovedError, match=rf"Flower [\d.]+ has no {home}\.Run \(.+\): correct"
    ):
        from strategies.core.flower import Run  # noqa: F401


USERS = {
    "get_load_client_app_fn": "run_clientapp",
    "install_from_fab": "run_clientapp",
    "subprocess": "SubprocessExecutor.launch",
}
"""The function of Flower that uses each replaced name."""


@pytest.mark.parametrize("name", flower.REPLACED)
def test_what_is_replaced_is_where_flower_uses_it(name, monkeypatch):
    module = import_module(flower.REPLACED[name])
    original = flower.replaced(name)
    monkeypatch.setattr(module, name, original)  # restored at the end
    flower.replace(name, "own")
    # Flower's function reads the name from its module when it is called.
    function = attrgetter(USERS[name])(module)
    assert name in function.__code__.co_names
    assert function.__globals__[name] == "own"


def test_a_name_that_cannot_be_replaced_is_named(monkeypatch):
    monkeypatch.setitem(flower.REPLACED, "install_from_fab", "flwr.app")
    with pytest.raises(flower.FlowerMovedError, match=r"no flwr\.app\.install_from_fab .+REPLACED"):
        flower.replace("install_from_fab", None)


def test_other_names_of_flower_are_public():
    others = MODULES.keys() - {"strategies.core.flower"}
    used = {(name, *place) for name in others for place in imported_from_flower(name)}
    assert len(used) > 20
    private = [
        (name, module, what)
        for name, module, what in used
        if module not in PUBLIC or what not in import_module(module).__all__
    ]
    assert private == []
