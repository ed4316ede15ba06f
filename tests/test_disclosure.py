"""The pages on disclosure name exactly what clients send and receive in real runs."""

import math
import re

import pytest
from helpers import most_of_them_slow

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
    assert set(common_rows_of(record)) <= set(disclosure.generated_part(COMMON)), HINT


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
    assert not set(rows) & set(disclosure.generated_part(COMMON))


def test_a_node_of_a_deployment_sends_no_more(tmp_path):
    trusting = Record("kt-pfl", tmp_path / "trusting")
    policy = {"trust-server": False, "allow-code": "tests", "min-class-count": 0}
    policy |= {"epsilon-budget": math.inf}
    careful = Record("kt-pfl", tmp_path / "careful", node_configs=dict.fromkeys(range(4), policy))
    assert list(careful.run.rounds["failures"]) == [0, 0]
    for kind, names in careful.info.items():
        assert names <= trusting.info[kind]
        assert careful.metrics[kind] <= trusting.metrics[kind]
        assert careful.sent[kind] == trusting.sent[kind]


def methods_in(sentence):
    """Return the methods that a bold sentence of the overview names in its item."""
    (item,) = [line for line in items_of_overview() if line.startswith(f"- **{sentence}")]
    return set(re.findall(r"`([\w-]+)`", item)) & set(METHODS)


def items_of_overview():
    text = COMMON.read_text()
    return re.split(r"\n(?=- )", text)


def test_the_overview_agrees_with_the_tables():
    blocks = {name: lines for page in PAGES.values() for name, lines in blocks_of(page).items()}
    sent = {name for name, lines in blocks.items() if any("sent is" in line for line in lines)}
    assert methods_in("The personalized model itself is sent") == sent
    copies = {name for name, lines in blocks.items() if any("unchanged" in line for line in lines)}
    single = methods_in("Other clients receive single models") - methods_of_mixtures()
    assert single | methods_in("A cluster of one client") == copies
    stays = methods_in("The personalized model stays")
    assert not stays & sent


def methods_of_mixtures():
    return {"fedamp", "kt-pfl-params", "fedkma", "pfedgraph"}
