"""Every method does what all have to do, and the check notices those that do not."""

from dataclasses import replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch

import fedkd_flwr
from fedkd_flwr.clients.base import Evaluated, PersonalClient, TrainReply
from fedkd_flwr.clients.fedprox import FedProxClient
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.methods import METHODS
from fedkd_flwr.testing import SETTINGS, check_method
from strategies.core.exchange import Traffic
from strategies.core.method_record import Need
from strategies.core.plan import ImpossiblePlanError
from strategies.fedprox import FedProx
from strategies.local import Local

PERSFL = {"persfl.distillation-epochs": 1, "persfl.imitation": "0,0.5"}

QUICK = {
    "feddf": {"feddf.distillation-steps": 2},
    "pfeddf": {"feddf.distillation-steps": 2},
    "persfl": PERSFL,
    "persfl-gd": PERSFL,
    "pfedhn": {"pfedhn.hidden-size": 8},
    "privatekt": {"soft-predictions.noise-seed": 0},
}
"""Settings of methods whose defaults take long, or draw secret noise."""

EXAMPLES = (
    "examples.own_method:nearest",
    "examples.own_fedrep:fedrep",
    "examples.own_fedpac:fedpac",
)


@pytest.mark.parametrize("method", [*METHODS, *EXAMPLES])
def test_a_method_keeps_the_contract(method):
    check_method(method, **QUICK.get(method, {}))


# ---- Settings ------------------------------------------------------------------------

OUT_OF_RANGE = {
    "apfl": {"alpha": 1.5},
    "ditto": {"personalization-weight": -1.0},
    "ds-fl": {"era-temperature": 0, "aggregation": "sharp"},
    "fd": {"gamma": -0.1},
    "fedala": {"sample-share": 0, "mixed-layers": -1},
    "fedamp": {"sigma": 0.0, "attention-step": -1.0, "regularization-weight": -1.0},
    "fedapen": {"private-weight": 1.5, "ensemble-weight": -1, "adaptability-share": 1.0},
    "fedbabu": {"epochs": 1.5, "part": "tail"},
    "feddf": {"distillation-steps": -1, "distillation-batch-size": 0},
    "feddyn": {"alpha": 0},
    "fedfomo": {"models-sent": 0, "exploration": 1.5},
    "fedgen": {"weight": -1},
    "fedgh": {"feature-width": -1, "server-learning-rate": 0, "server-epochs": 0},
    "fedkd": {"energy-start": 0},
    "fedkma": {"similarity-weight": 1.5, "alpha-learning-rate": 0},
    "fedmrl": {"coarse-weight": -1, "shared-width": -1},
    "fednas": {"training-weight": -1, "alpha-share": 1, "alpha-learning-rate": 0},
    "fedntd": {"beta": -0.1, "temperature": 0},
    "fedper": {"personal-layers": 0},
    "fedproto": {"feature-width": -1, "prototype-weight": -1, "predict": "both"},
    "fedprox": {"mu": float("inf")},
    "fedrep": {"head-epochs": 0},
    "fedtgp": {"margin-threshold": -1, "server-epochs": 0, "predict": "both"},
    "fesem": {"clusters": 0},
    "fml": {"alpha": 1.1, "beta": -0.1},
    "hypcluster": {"clusters": 0},
    "kt-pfl-params": {"rho": -1.0, "transfer-step": 1.1},
    "lg-fedavg": {"feature-width": -1},
    "moon": {"mu": -1, "temperature": 0},
    "per-fedavg": {"inner-learning-rate": -0.1, "adaptation": "round", "evaluate-on": "local"},
    "perfed-ckt": {"clusters": 0},
    "persfl": {"teacher": "best"},
    "pfeddf": {"epochs": 0},
    "pfedgraph": {"size-weight": 0},
    "pfedhn": {"learning-rate": 0, "momentum": 1.0, "hidden-size": 0, "gradient-norm": 0},
    "pfedme": {"personalization-weight": -1.0, "personal-steps": 0, "beta": 0.0},
    "privatekt": {"epsilon": 0},
    "scaffold": {"server-learning-rate": 0.0, "correction": 1.5},
    "selective-fd": {"server-threshold": 3},
    "spider": {"proximal-weight": -1, "prune-every": -1},
}
"""Values just outside of what a method allows."""

IMPOSSIBLE = [
    ("fedavg", {"models": "mlp,lenet"}, "fedavg averages parameters and needs one architecture"),
    ("fedfomo", {"client-split": "75/0/25"}, "fedfomo needs validation data; set client-split"),
    ("kt-pfl", {"public-dataset": "none"}, "kt-pfl exchanges predictions on public samples; set"),
    ("pfedme", {"optimizer": "adamw"}, "pfedme is derived for stochastic gradient descent"),
    ("apfl", {"dp-sgd-noise-multiplier": 1.0}, "apfl uses training samples outside of plain"),
    ("fedapen", {"fedapen.shared-model": "nope"}, r"shared-model = 'nope'.*not one of lenet"),
    ("fedkd", {"fedkd.shared-model": "nope"}, r"shared-model = 'nope'.*not one of lenet"),
    ("fedmrl", {"fedmrl.shared-model": "nope"}, r"shared-model = 'nope'.*not one of lenet"),
    ("fml", {"fml.shared-model": "nope"}, r"shared-model = 'nope'.*not one of lenet"),
    ("feddf", {"public-size": 0}, "distills on the server on public samples.*public-size"),
    ("fedkd", {"fedkd.energy-start": 0.99}, "set fedkd.energy-end to at least 0.99"),
    ("fesem", {"fesem.clusters": 5}, "fesem.clusters = 5 is more than the 4 clients; set it to"),
    (
        "fesem",
        {"fraction-train": 0.5, "fesem.clusters": 3},
        r"is more than the 2 clients per round \(fraction-train\); set it to at most 2",
    ),
    ("hypcluster", {"hypcluster.clusters": 5}, "is more than the 4 clients; set it to at most 4"),
    ("kt-pfl", {"mixing": "median"}, "set soft-predictions.mixing = median"),
    ("pfedhn", {"mixing": "median"}, "set mixing = mean"),
    ("perfed-ckt", {"perfed-ckt.clusters": 5}, "is more than the 4 clients; set it to at most 4"),
    ("fedprox", {"prox.mu": 0.1}, "no key prox.mu; did you mean fedprox.mu"),
    (
        "pfedme",
        {"learning-rate": 0.2, "pfedme.personal-learning-rate": 0.2},
        "is 3, and the personal model diverges unless it is below 2; set one of the two lower",
    ),
    (
        "privatekt",
        {"soft-predictions.mixing": "median"},
        "soft-predictions.mixing = median is not possible",
    ),
    ("privatekt", {"soft-predictions.noise-multiplier": 1.0}, "randomized response: set it to 0"),
    ("privatekt", {"privatekt.knowledge-samples": 21}, "is more than public-size = 20"),
    ("selective-fd", {"soft-predictions.mixing": "median"}, "mixing = median is not possible"),
    ("persfl", {"persfl.imitation": "0,1.5"}, r"persfl.imitation.*numbers in \[0, 1\]"),
    ("persfl", {"persfl.imitation": "nan"}, "persfl.imitation.*a finite number"),
    ("persfl", {"persfl.imitation": ""}, "persfl.imitation.*one or more"),
    ("persfl", {"persfl.temperatures": "1,0"}, "persfl.temperatures.*above 0"),
    ("persfl", {"persfl.temperatures": "inf"}, "persfl.temperatures.*a finite number"),
    (
        "spider",
        {"models": "darts", "spider.prune-from": 9, "num-server-rounds": 9},
        "prunes 5 edges of a cell one after the other, the last in round 13 of 9; set",
    ),
    (
        "spider",
        {"models": "darts", "num-server-rounds": 9, "new-clients": 0.5, "new-client-rounds": 3},
        "the last edge in round 5, and new clients take new-client-rounds = 3; set new-cl",
    ),
]
"""Combinations that a method cannot have, and what is said of them."""


def settings_of(method):
    one_model = Need.ONE_ARCHITECTURE in METHODS[method].record.needs
    return {**SETTINGS, "strategy": method, "models": "mlp" if one_model else "mlp,lenet"}


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [(method, *item) for method, values in OUT_OF_RANGE.items() for item in values.items()],
)
def test_a_setting_out_of_range_is_refused_in_one_line(method, name, value):
    with pytest.raises(ConfigError) as refused:
        read_config({**settings_of(method), f"{method}.{name}": value})
    assert str(refused.value).startswith(f"{method}.{name} = {value!r}: it should be ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("method", "changes", "sentence"), IMPOSSIBLE)
def test_an_impossible_combination_is_refused_in_one_line(method, changes, sentence):
    with pytest.raises(ConfigError, match=sentence) as refused:
        read_config({**settings_of(method), **changes})
    assert "\n" not in str(refused.value)


# ---- Methods that break it -------------------------------------------------------------


class RandomClient(PersonalClient):
    def train(self, received, server_round, phase):
        reply = super().train(received, server_round, phase)
        with torch.no_grad():
            next(self.model.parameters()).add_(np.random.default_rng().normal())
        return reply


SEEN = WeakKeyDictionary()
"""Rounds of strategies, which are no part of their states."""


class Forgetful(FedProx):
    def aggregate(self, server_round, replies):
        SEEN[self] = SEEN.get(self, 0) + 1
        state = super().aggregate(server_round, replies)
        return replace(state, model={k: v / SEEN[self] for k, v in state.model.items()})


class SociableClient(PersonalClient):
    def train(self, received, server_round, phase):
        if self.session.run.cohort == "on":
            self.train_locally(server_round)
        return super().train(received, server_round, phase)


class TalkativeClient(PersonalClient):
    def train(self, received, server_round, phase):
        reply = super().train(received, server_round, phase)
        return replace(reply, metrics={**reply.metrics, "age": 42})


class GenerousClient(PersonalClient):
    def train(self, received, server_round, phase):
        reply = super().train(received, server_round, phase)
        return TrainReply({"labels": self.data.train_labels.numpy()}, reply.metrics)


class Secretive(FedProx):
    record = FedProx.record.derived(exchanged="nothing")


class Mute(Local):
    record = Local.record.derived(exchanged="soft predictions")


class Fragile(FedProx):
    """Divides by the number of clients that it expected."""

    def aggregate(self, server_round, replies):
        state = super().aggregate(server_round, replies)
        share = 1.0 if len(replies) == 3 else np.nan
        return replace(state, model={k: share * v for k, v in state.model.items()})


class Stubborn(FedProx):
    @classmethod
    def check_plan(cls, plan, settings):
        if plan.mixing == "median":
            raise ImpossiblePlanError("no median, please")


class UniformClient(PersonalClient):
    @cached_property
    def model(self):
        torch.manual_seed(0)
        return self.architectures[0].build()


class UncountedClient(PersonalClient):
    def evaluated(self, received, server_round):
        return Evaluated(self.model, {"own-test-correct": 0, "own-test-total": 1})


@pytest.mark.parametrize(
    ("strategy", "client", "sentence"),
    [
        (Local, RandomClient, "in a second run, the table of rounds has another"),
        (Forgetful, FedProxClient, "after a stop in round 2, the table of rounds has another"),
        (Local, SociableClient, "with cohort = on, clients have another"),
        (Local, TalkativeClient, r"`age` is not declared: in the record of broken, add Metric"),
        (Local, GenerousClient, r"`labels` is not declared: in the record of broken, add Sent"),
        (Secretive, FedProxClient, "clients send arrays, and `exchanged` is nothing"),
        (Mute, PersonalClient, "clients send no arrays, and `exchanged` is not nothing"),
        (Fragile, FedProxClient, "Round 2 has 0 valid replies"),
        (Stubborn, FedProxClient, r"`averages_parameters` is True, and mixing = median is refused"),
        (
            Local,
            UniformClient,
            "with initial-weights = own, clients of one architecture start from one draw",
        ),
        (
            Local,
            UncountedClient,
            "client 0, reports 0 own-test-correct predictions out of 1 samples, but has 5",
        ),
    ],
)
def test_a_method_that_breaks_the_contract_is_told_how(strategy, client, sentence):
    broken = fedkd_flwr.register("broken", strategy, client)
    with pytest.raises(AssertionError, match=sentence) as told:
        check_method(broken)
    assert "\n" not in str(told.value)


def test_arrays_that_are_not_counted_are_noticed(monkeypatch):
    count = Traffic.count_up

    def forgetting(traffic, partition_id, arrays):
        count(traffic, partition_id, {} if partition_id == 1 else arrays)

    monkeypatch.setattr(Traffic, "count_up", forgetting)
    with pytest.raises(AssertionError, match=r"numbers_up of client 1 in round . is 0, and 79510"):
        check_method("fedavg")
