"""What a method writes on server and client: few names, and no others of the two."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from flwr.client import NumPyClient
from helpers import client_of
from test_layering import MODULES

import fedkd_flwr.clients.api
import strategies.api
from fedkd_flwr.clients.base import HOOKS_BEFORE, PersonalClient
from fedkd_flwr.clients.kt_pfl import KTpFLClient
from fedkd_flwr.methods import METHODS
from strategies.base import PersonalizedStrategy
from strategies.core.method_record import FAMILIES, MethodRecord, Need, Paper
from strategies.core.plan import ImpossiblePlanError, RunPlan, Settings
from strategies.core.replies import ClientInfo
from strategies.fedavg import FedAvg
from strategies.fedper import FedPer
from strategies.fedprox import FedProx
from strategies.kt_pfl import KTpFL
from strategies.method import Method
from strategies.parameters import ParameterStrategy

ROOT = Path(__file__).parents[1]
OF_INSTANCE = {"session", "settings", "device", "partition_id"}
"""What a client has from its first line on."""

OF_FLOWER = {name for name in dir(NumPyClient) if not name.startswith("_")}


def public(*kinds):
    names = set().union(*(vars(kind) for kind in kinds))
    return {name for name in names if not name.startswith("_")}


SIDES = {
    "the server": (Method, public(Method) | set(Method.__annotations__)),
    "a client": (PersonalClient, (public(PersonalClient) | OF_INSTANCE) - OF_FLOWER),
}
"""The class from which a method's derives, and the names that it has."""

PROTOCOL = ("strategies.base", "strategies.method", "fedkd_flwr.clients.base")


@pytest.fixture(params=SIDES)
def side(request):
    return request.param


def test_a_method_sees_at_most_25_names_of_a_side(side):
    assert len(SIDES[side][1]) <= 25


def test_the_names_that_a_client_has_from_its_first_line_on(small):
    client = client_of(small, strategy="local")
    assert {name for name in vars(client) if not name.startswith("_")} == OF_INSTANCE


def test_the_guide_shows_fedpac_whole_and_bases_that_one_module_a_side_has():
    guide = (ROOT / "docs/how-to/custom-methods.md").read_text()
    fedpac = (ROOT / "examples/own_fedpac.py").read_text()
    assert f"```python\n{fedpac}```" in guide and len(fedpac.splitlines()) <= 100
    bases = set(
        re.findall(r"`(\w+(?:Strategy|Client))`", guide.partition("## Write both sides")[2])
    )
    assert len(bases) > 12
    assert bases <= {*vars(strategies.api), *vars(fedkd_flwr.clients.api)}


def names_in(name, base):
    """Return the names of a side that methods of a module read, and those that they define."""
    read, defined, module = set(), set(), import_module(name)
    for kind in ast.parse(MODULES[name].read_text()).body:
        if not (isinstance(kind, ast.ClassDef) and issubclass(getattr(module, kind.name), base)):
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


def test_methods_read_no_other_names_of_a_side(side):
    base, names = SIDES[side]
    package = re.compile(
        r"strategies\.\w+" if side == "the server" else r"fedkd_flwr\.clients\.\w+"
    )
    modules = [name for name in MODULES if package.fullmatch(name) and name not in PROTOCOL]
    classes = {name: names_in(name, base) for name in modules}
    own = set().union(*(defined for _, defined in classes.values()))
    assert len(own) > 50
    for name, (read, _) in classes.items():
        assert read <= names | own, name


@pytest.mark.parametrize("name", HOOKS_BEFORE)
def test_a_hook_of_an_earlier_version_is_refused_with_what_to_write(name):
    with pytest.raises(TypeError, match=f"Mine.{name} is no hook any more: .*`"):
        type("Mine", (PersonalClient,), {name: None})


def test_a_client_is_made_from_a_session_alone():
    with pytest.raises(TypeError, match=r"write `def __init__\(self, session\)`"):
        type("Mine", (PersonalClient,), {"__init__": lambda self, context, run, settings: None})
    type("Mine", (PersonalClient,), {"__init__": lambda self, session: None})


def test_settings_that_do_not_say_which_layers_stay_are_refused():
    with pytest.raises(ImpossiblePlanError, match=r"derive Settings from FedPerSettings"):
        FedPer(RunPlan(num_clients=2, num_classes=2), Settings())


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


# ---- Records -------------------------------------------------------------------------


UNDATED = {"fedkma", "fedkma-uniform"}
"""The text of their paper does not say when it appeared."""


@pytest.mark.parametrize(
    ("base", "name", "meant"),
    [
        (PersonalClient, "distil", ""),
        (KTpFLClient, "distil", "distill"),
        (KTpFL, "agregate", "agg"),
        (PersonalClient, "need_layer", "needs_layer"),
        (PersonalClient, "keep_model", "keeps_model"),
        (PersonalClient, "epochs", ""),
    ],
)
@pytest.mark.parametrize("value", [lambda self: None, "head", property(lambda self: 1)])
def test_a_mistyped_name_is_refused(base, name, meant, value):
    def made():
        return type("Mine", (base,), {name: value})

    if not meant:
        assert made()
        return
    with pytest.raises(TypeError, match=f"Mine.{name} is not read: write {meant}"):
        made()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_paper_or_is_a_baseline(method):
    paper = METHODS[method].record.paper
    if paper is None:
        assert method in ("local", "fedavg-ft")
        return
    assert 2010 < paper.year < 2030 or method in UNDATED
    assert not paper.arxiv or re.fullmatch(r"\d{4}\.\d{5}", paper.arxiv)
    surnames = paper.short.replace(" and ", " et al. ").split(" et al.")[0]
    assert surnames in paper.authors.split(",")[0]
    assert f"*{paper.title}*" in paper.citation


@pytest.mark.parametrize("method", METHODS)
def test_the_settings_of_a_record_are_those_that_its_class_reads(method):
    record, strategy = METHODS[method].record, METHODS[method].strategy
    read = inspect.get_annotations
    annotated = [read(kind)["settings"] for kind in strategy.__mro__ if "settings" in read(kind)]
    assert not annotated or issubclass(record.settings_type, annotated[0])
    assert "record" in vars(strategy)
    assert record.family in FAMILIES


def test_a_paper_is_cited_by_its_surnames():
    alone = Paper("Ann B. Lee", "One", year=2020)
    two = Paper("Ann B. Lee, C. van Dam", "Two", "ICML", 2021, "2101.00001", part="§5")
    three = Paper("A. Lee, B. Dam, C. Roe", "Three")
    assert [paper.short for paper in (alone, two, three)] == [
        "Lee 2020",
        "Lee and Dam 2021, §5",
        "Lee et al.",
    ]
    assert alone.citation == "Lee 2020: *One*"
    assert two.citation == "Lee and Dam 2021, §5: *Two*, ICML, arXiv:2101.00001"


def test_a_class_without_a_record_has_that_of_its_base_without_its_promises():
    class Mine(KTpFL):
        pass

    class Own(PersonalizedStrategy):
        pass

    assert KTpFL.record.dp_sgd and KTpFL.record.takes_estimators
    assert not Mine.record.dp_sgd and not Mine.record.takes_estimators
    assert KTpFL.record.paper and Mine.record.paper is None
    assert Mine.record.settings_type is KTpFL.record.settings_type
    assert Mine.record.needs == (Need.PUBLIC_DATA,)
    assert Own.record == MethodRecord()
    assert Own.record.family == "parameters"
    assert Own.record.settings_type is Settings


@pytest.mark.parametrize(
    ("attribute", "value", "fact"),
    [
        ("exchanged", "nothing", "exchanged=…"),
        ("settings_type", Settings, "settings_type=…"),
        ("dp_sgd", True, "dp_sgd=…"),
        ("needs_validation_data", True, "needs=('validation data',)"),
        ("distills_on_server", True, "needs=('public data on the server',)"),
    ],
)
def test_a_fact_outside_of_the_record_is_refused_with_what_to_write(attribute, value, fact):
    sentence = f"Mine.{attribute} belongs in the record"
    with pytest.raises(TypeError, match=sentence) as refused:
        type("Mine", (ParameterStrategy,), {attribute: value})
    assert f"write record = ParameterStrategy.record.derived({fact})" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("hook", "instead"),
    [("matrices", "Results(matrices=…)"), ("new_client_payload", "`train_payload`; n in self.")],
)
def test_a_hook_that_is_no_longer_called_is_refused_with_what_to_write(hook, instead):
    with pytest.raises(TypeError, match=f"Mine.{hook} is no hook any more: ") as refused:
        type("Mine", (ParameterStrategy,), {hook: lambda self: {}})
    assert instead in str(refused.value)


def test_a_need_is_one_that_runs_are_checked_for():
    record = FedProx.record.derived(needs=("validation data",))
    assert Need.VALIDATION_DATA in record.needs
    with pytest.raises(ValueError, match="'valid data' is not one of one architecture, public"):
        FedProx.record.derived(needs=("valid data",))
