"""Flower's own parts: the public ones everywhere, the others through one module."""

import ast
from importlib import import_module
from operator import attrgetter

import pytest
from test_layering import MODULES

from strategies.core import flower

PUBLIC = (
    "flwr.app",
    "flwr.client",
    "flwr.clientapp",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "flwr.simulation",
)


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
