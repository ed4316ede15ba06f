"""What a method writes on the server: few names, and no others of the server."""

import ast
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from test_layering import MODULES

from strategies.core.client_info import ClientInfo
from strategies.core.plan import RunPlan
from strategies.fedavg import FedAvg
from strategies.method import Method

ROOT = Path(__file__).parents[1]
NAMES = {name for name in {*vars(Method), *Method.__annotations__} if not name.startswith("_")}
PROTOCOL = ("strategies.base", "strategies.method")
METHODS = [
    name for name in MODULES if re.fullmatch(r"strategies\.\w+", name) and name not in PROTOCOL
]


def test_a_method_sees_at_most_25_names_of_the_server():
    assert len(NAMES) <= 25


def test_the_guide_lists_these_names_and_no_others():
    guide = (ROOT / "docs/how-to/custom-methods.md").read_text()
    section = guide.partition("## All names on the server\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)", section, re.MULTILINE)) == NAMES


def of_server(name):
    """Return the names of the server that methods of a module read, and those that they define."""
    read, defined, module = set(), set(), import_module(name)
    for kind in ast.parse(MODULES[name].read_text()).body:
        if not (isinstance(kind, ast.ClassDef) and issubclass(getattr(module, kind.name), Method)):
            continue
        for node in ast.walk(kind):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.add(node.name)
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                defined |= {target.id for target in targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                read |= {node.attr} if node.value.id in ("self", "cls") else set()
    return read, defined


def test_methods_read_no_other_names_of_the_server():
    classes = {name: of_server(name) for name in METHODS}
    own = set().union(*(defined for _, defined in classes.values()))
    assert len(own) > 50
    for name, (read, _) in classes.items():
        assert read <= NAMES | own, name


@pytest.fixture
def server():
    """FedAvg among four clients, the last of which is new and the third away."""
    strategy = FedAvg(RunPlan(num_clients=4, num_classes=2, newcomers=(3,)), None)
    sizes = {0: 10, 1: 30, 3: 20}
    strategy.members.clients = {n: ClientInfo(n, 100 + n, "mlp", size) for n, size in sizes.items()}
    return strategy


def test_a_round_tells_who_has_trained_and_who_is_new(server):
    assert server.round.trained == [0, 1]
    assert server.round.new == {3}
    assert server.round.clients.keys() == {0, 1, 3}
    assert server.round.reachable == []
    assert server.round.failures == {}
    np.testing.assert_array_equal(server.round.sizes([1, 3]), [30, 20])


def test_weights_are_sizes_unless_the_run_says_otherwise(server):
    np.testing.assert_array_equal(server.weights_of([0, 1]), [10, 30])
    server.plan = server.plan.model_copy(update={"weighting": "uniform"})
    np.testing.assert_array_equal(server.weights_of([0, 1]), [1, 1])


def test_the_copy_for_new_clients_leaves_the_server_as_it_is(server):
    server.state = server.begin({"weights": np.zeros(2)})
    host = server.for_new_clients()
    host.state.model["weights"] += 1
    np.testing.assert_array_equal(server.state.model["weights"], 0)


def test_a_payload_for_several_clients_is_made_once_a_round(server):
    made = []
    payloads = [server.round.once("key", lambda: made.append(1) or {}) for _ in range(2)]
    assert payloads[0] is payloads[1]
    assert made == [1]
