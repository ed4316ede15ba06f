"""What a method declares of its arrays and numbers is true.

A client gets each message seven times: with its own samples, and with one training, validation or
test sample exchanged for another one, of its class or of another. What is declared without these
samples must not change by a bit, while no weight moves; while weights move, neither may what is
declared not to depend on the model.
"""

from collections import defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.clients import session as sessions
from fedkd_flwr.clients.gate import declaration_of, declared_metrics
from fedkd_flwr.config import read_config
from fedkd_flwr.data.clients import load_client
from fedkd_flwr.methods import METHODS
from fedkd_flwr.testing import ARCHITECTURE_SEARCH
from fedkd_flwr.training.loop import SGD, Adam, AdamW
from strategies.core.declarations import Data
from tests.conftest import SMALL
from tests.disclosure import SEARCHES
from tests.helpers import arrays_of, most_of_them_slow, run_with

PARTS = (Data.TRAINING, Data.VALIDATION, Data.TEST)
EXCHANGES = tuple(product(PARTS, ("its class", "another class")))
CHANGED = 0
"""The client whose samples are exchanged."""

FIXED = {
    # Its mixture of two models is learned from training samples.
    "fedapen": {"fedapen.adaptability-share": 0.0},
    "privatekt": {"soft-predictions.noise-seed": 1},
}
"""Settings with which neither a model nor noise changes."""


def exchanged(data, part, kind):
    """Return a client's data with the first sample of a part exchanged for one that it has not."""
    number = PARTS.index(part)
    first, *others = data.positions[number]
    same = data.samples.labels == data.samples.labels[first]
    fitting = np.flatnonzero(same if kind == "its class" else ~same)
    taken = np.setdiff1d(fitting, np.concatenate(data.positions))[0]
    positions = list(data.positions)
    positions[number] = np.array([taken, *others])
    return replace(data, positions=tuple(positions))


class Differences:
    """Serves each message with the client's data and with that of each exchange.

    Attributes
    ----------
    found : dict of Data to set of str
        Names of the items that changed with a sample of a part.
    """

    def __init__(self, monkeypatch):
        self.found = defaultdict(set)
        self._contexts, self._data, self._exchange = {}, {}, None
        monkeypatch.setattr(sessions, "load_client", self._load)

    def _load(self, plan, partition_id, *node):
        data = load_client(plan, partition_id, *node)
        if self._exchange is None:
            return data
        if self._exchange not in self._data:
            self._data[self._exchange] = exchanged(data, *self._exchange)
        return self._data[self._exchange]

    def __call__(self, message, context):
        is_changed = context.node_config["partition-id"] == CHANGED
        replies = {}
        for self._exchange in EXCHANGES if is_changed else ():
            own = self._contexts.setdefault(self._exchange, fresh(context))
            replies[self._exchange] = items_of(client_app(message, own))
        self._exchange = None
        reply = client_app(message, context)
        for (part, _), items in replies.items():
            expected = items_of(reply)
            assert items.keys() == expected.keys()
            self.found[part] |= {n for n in items if not equal(items[n], expected[n])}
        return reply


def fresh(context):
    """Return the context of a client that remembers nothing."""
    node_config, run_config = dict(context.node_config), context.run_config
    return Context(context.run_id, context.node_id, node_config, RecordDict(), run_config)


def items_of(reply):
    return {**arrays_of(reply), **reply.content.metric_records["metrics"]}


def equal(one, other):
    return np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")


def fix_models(monkeypatch):
    """Let no step move a weight, and no image a running statistic."""
    for kind in (SGD, Adam, AdamW):
        monkeypatch.setattr(kind, "step", lambda self: None)
    normalize = torch.nn.functional.batch_norm

    def by_running_statistics(images, mean, variance, weight, bias, training, momentum, eps):
        return normalize(images, mean, variance, weight, bias, False, 0.0, eps)

    monkeypatch.setattr(torch.nn.functional, "batch_norm", by_running_statistics)


@pytest.mark.parametrize("moves", [False, True], ids=["fixed", "trained"])
@pytest.mark.parametrize("strategy", most_of_them_slow(METHODS))
def test_nothing_depends_on_samples_that_its_declaration_lacks(
    strategy, moves, tmp_path, monkeypatch
):
    if not moves:
        fix_models(monkeypatch)
    differences = Differences(monkeypatch)
    models = ARCHITECTURE_SEARCH if strategy in SEARCHES else {"models": "mlp"}
    settings = {**SMALL, **models, "strategy": strategy, "local-iterations": 2}
    settings |= FIXED.get(strategy, {})
    run, _ = run_with(differences, settings, tmp_path)
    assert list(run.rounds["failures"]) == [0, 0]
    config = read_config(settings).run
    declared = *config.method.record.sends, *declared_metrics(config, classes=10)
    known = {sent.name: sent for sent in declared}
    for part in PARTS:
        changed = {name: declaration_of(name, known) for name in differences.found[part]}
        lies = {
            name
            for name, sent in changed.items()
            if part not in sent.inputs and not (moves and sent.through_model)
        }
        assert lies == set()
        # Each exchange is seen, so that the comparison can fail.
        assert changed or (strategy == "privatekt" and part == Data.TRAINING)
