"""The pages on disclosure name exactly what clients send and receive in real runs."""

import fnmatch
import math
import re

import pytest
from helpers import most_of_them_slow

from fedkd_flwr.clients.policy import NodePolicy
from fedkd_flwr.methods import METHODS
from tests import disclosure
from tests.disclosure import COMMON, PAGES, Record, blocks_of, common_rows_of, page_of, rows_of

HINT = "what a client sends has changed: run `python -m tests.disclosure` and read the difference"


@pytest.mark.parametrize("strategy", most_of_them_slow(METHODS))
def test_a_page_names_all_that_leaves_a_client(strategy, tmp_path):
    record = Record(strategy, tmp_path)
    assert list(record.run.rounds["failures"]) == [0, 0]
    assert record.records == {"arrays", "metrics", "info"}
    page = page_of(METHODS[strategy])
    assert blocks_of(page)[strategy] == rows_of(record), HINT
    assert set(common_rows_of(record)) <= set(disclosure.common_rows_on_page()), HINT


def test_an_addition_to_a_reply_is_noticed(tmp_path, monkeypatch):
    """The comparison can fail: one more entry in the replies is another table."""
    answer = disclosure.client_app

    def with_one_more(message, context):
        reply = answer(message, context)
        reply.content.config_records["info"]["age"] = 42
        return reply

    monkeypatch.setattr(disclosure, "client_app", with_one_more)
    rows = common_rows_of(Record("fedavg", tmp_path))
    assert all("`age`" in row for row in rows)
    assert not set(rows) & set(disclosure.common_rows_on_page())


def test_a_node_of_a_deployment_sends_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(NodePolicy, "approves", lambda *_: True)  # of code in these tests
    trusting = Record("kt-pfl", tmp_path / "trusting")
    policy = {"trust-server": False, "min-class-count": 0}
    policy |= {"epsilon-budget": math.inf}
    careful = Record("kt-pfl", tmp_path / "careful", node_configs=dict.fromkeys(range(4), policy))
    assert list(careful.run.rounds["failures"]) == [0, 0]
    for kind, names in careful.info.items():
        assert names <= trusting.info[kind]
        assert careful.metrics[kind] <= trusting.metrics[kind]
        assert careful.sent[kind] == trusting.sent[kind]


def test_the_pages_are_what_the_command_writes():
    written = disclosure.pages(disclosure.common_rows_on_page(), disclosure.blocks_by_family())
    assert {page: page.read_text() for page in written} == written


NOT_IN_THESE_RUNS = {
    "perfed-ckt": {"weight"},  # with `weight-by-distance` alone
    "selective-fd": {"distillation-loss", "moved-public"},  # too few samples are kept
    # Their shared model has no batch normalization here, and is no supernet.
    **{strategy: {"buffers", "alphas"} for strategy in ("fml", "fedkd", "fedmrl", "fedapen")},
}


def test_what_a_method_declares_is_seen_in_its_run():
    for blocks in disclosure.blocks_by_family().values():
        for strategy, lines in blocks.items():
            cells = [row.split("|")[2:4] for row in lines if row.startswith("| ")]
            seen = {name for pair in cells for name in re.findall(r"`([^`]+)`", "".join(pair))}
            record = METHODS[strategy].record
            declared = *record.sends, *record.train_metrics, *record.evaluation_metrics
            unseen = {one.name for one in declared if not fnmatch.filter(seen, one.name)}
            assert unseen == NOT_IN_THESE_RUNS.get(strategy, set()), strategy


def test_every_name_in_the_tables_has_a_meaning():
    blocks = [lines for page in (COMMON, *PAGES.values()) for lines in blocks_of(page).values()]
    rows = [row for lines in [disclosure.common_rows_on_page(), *blocks] for row in lines]
    names = {name for row in rows if row[0] == "|" for name in re.findall(r"`([^`]+)`", row)}
    explained = re.findall(r"`([^`]+)`", disclosure.COMMON.read_text().partition("## Names")[2])
    general = {name for name in names if name.startswith("generator/")}
    assert names - general - set(explained) == {"partition-id"}
