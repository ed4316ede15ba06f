"""Records of methods: complete for every method, inherited, and refused in another place."""

import inspect
import re

import pytest

from fedkd_flwr.methods import METHODS
from strategies.base import PersonalizedStrategy
from strategies.core.method_record import FAMILIES, MethodRecord, Need, Paper
from strategies.core.plan import Settings
from strategies.fedprox import FedProx
from strategies.kt_pfl import KTpFL
from strategies.parameters import ParameterStrategy

UNDATED = {"fedkma", "fedkma-uniform"}
"""The text of their paper does not say when it appeared."""


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
