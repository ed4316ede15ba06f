"""What a user does wrong is named in one sentence, at the place where it is wrong."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.svm import SVC
from torch.nn import functional

import fedkd_flwr
from fedkd_flwr.clients.base import PersonalClient, TrainReply
from fedkd_flwr.config import ConfigError
from fedkd_flwr.methods import METHODS
from strategies.core.declarations import Sent
from strategies.core.replies import ExpectedArray
from strategies.core.state import State
from strategies.local import Local


@dataclass(frozen=True)
class Kept(State):
    mean: np.ndarray


@dataclass(frozen=True)
class Vague(State):
    knowledge: dict


@dataclass(frozen=True)
class Listed(State):
    losses: list


class Sending(Local):
    """Sends an array of ones to every client, and expects one."""

    record = Local.record.derived(sends=(Sent("mean"),))

    def train_payload(self, server_round, partition_id):
        return {"weights": np.ones(3, dtype=np.float32)}

    def expected_arrays(self, server_round, partition_id):
        return {"mean": ExpectedArray((3,))}


class VagueState(Sending):
    def begin(self, initial):
        return Vague({0: np.zeros(3)})


class ListState(Sending):
    def begin(self, initial):
        return Listed([np.zeros(3)])


class SlashState(Sending):
    def begin(self, initial):
        return Kept({"layer/weight": np.zeros(3)})


class Uninitialized(Sending):
    def __init__(self, *given):
        self.gain = 1.0


class Counting(Sending):
    rounds = 0

    def aggregate(self, server_round, replies):
        self.rounds += 1
        return super().aggregate(server_round, replies)


class Forgetful(Sending):
    def aggregate(self, server_round, replies):
        Kept(np.mean([reply.arrays["mean"] for reply in replies.values()], axis=0))


class Poisoned(Sending):
    def train_payload(self, server_round, partition_id):
        return {"weights": np.full(3, np.nan, dtype=np.float32)}


class NoPayload(Sending):
    def train_payload(self, server_round, partition_id):
        return None


class ListPayload(Sending):
    def train_payload(self, server_round, partition_id):
        return {"weights": [1.0, 2.0]}


class ShapeAlone(Sending):
    def expected_arrays(self, server_round, partition_id):
        return {"mean": (3,)}


class DictResults(Sending):
    def results(self):
        return {"gain": 1.0}


class Replying(PersonalClient):
    dtype, loss = "float32", None

    def train(self, received, server_round, phase):
        loss = self.train_locally(server_round, *([type(self).loss] if self.loss else []))
        return TrainReply({"mean": np.ones(3, dtype=self.dtype)}, {"train-loss": loss})


class Float64(Replying):
    dtype = "float64"


class LogitLoss(Replying):
    loss = functional.cross_entropy


class ModuleLoss(Replying):
    loss = torch.nn.CrossEntropyLoss()


class NanLoss(Replying):
    @staticmethod
    def loss(model, images, labels):
        return functional.cross_entropy(model(images), labels) * float("nan")


class PerSample(Replying):
    @staticmethod
    def loss(model, images, labels):
        return functional.cross_entropy(model(images), labels, reduction="none")


class NoLoss(Replying):
    @staticmethod
    def loss(model, images, labels):
        functional.cross_entropy(model(images), labels)


class DetachedLoss(Replying):
    @staticmethod
    def loss(model, images, labels):
        return functional.cross_entropy(model(images), labels).detach()


class TensorMetric(Replying):
    def train(self, received, server_round, phase):
        return TrainReply({"mean": np.ones(3, "float32")}, {"train-loss": torch.tensor(1.0)})


FIELD = "may be an array, or a dict by int or str of arrays"


@pytest.mark.parametrize(
    ("strategy", "client", "sentence"),
    [
        (VagueState, Replying, f"'knowledge' in a state is declared as dict; it {FIELD}"),
        (ListState, Replying, f"'losses' in a state is a list; it {FIELD}"),
        (SlashState, Replying, "'layer/weight' in a state holds a slash, which separates names"),
        (Uninitialized, Replying, "Uninitialized.__init__ has to call super().__init__(*args)"),
        (Counting, Replying, "`rounds` would be lost if the run is interrupted; declare it in the"),
        (Forgetful, Replying, "Forgetful.aggregate returned a NoneType; return the method's state"),
        (Sending, Float64, "client 0, mean holds float64, not float32"),
        (Poisoned, Replying, "the server sent weights with NaN or infinity; look at what the"),
        (NoPayload, Replying, "NoPayload.train_payload returned a NoneType; return a dict of arra"),
        (
            ListPayload,
            Replying,
            "weights is a list; a message holds arrays of numbers: numpy.asarr",
        ),
        (ShapeAlone, Replying, "declares mean as a tuple; write ExpectedArray(shape, dtype)"),
        (DictResults, Replying, "DictResults.results returned a dict; return Results(columns=..."),
        (Sending, PerSample, "the loss returned a Tensor of shape (16,); return the mean over the"),
        (Sending, NoLoss, "the loss returned a NoneType; return the mean over the batch, a tensor"),
        (
            Sending,
            DetachedLoss,
            "the loss has no gradient: it should not be detached, nor computed",
        ),
        (
            Sending,
            TensorMetric,
            "TensorMetric.train reports train-loss as a Tensor; write float(...)",
        ),
        (Sending, LogitLoss, "the loss cross_entropy takes logits, and a loss of a training takes"),
        (Sending, ModuleLoss, "the loss CrossEntropyLoss takes logits, and a loss of a training"),
        (Sending, NanLoss, "the loss of the first batch is nan, before any step; look at the loss"),
    ],
)
@pytest.mark.parametrize("cohort", ["off", "on"])
def test_the_mistake_of_a_method_is_named(cohort, strategy, client, sentence, small, logged):
    small |= {"models": "mlp", "cohort": cohort}
    with pytest.raises(Exception) as raised:
        fedkd_flwr.run(small, strategy=(strategy, client))
    assert sentence in "\n".join([str(raised.value), *logged()])
    assert "lower the learning-rate" not in str(raised.value)
    assert "another version" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"models": SVC()}, "models: SVC has fit and no predict_proba, so that it has no soft"),
        ({"models": ["mlp", object.__new__(State)]}, "models is a State; it should be a name"),
        ({"kt-pfl": {"temprature": 3}}, r"no key kt-pfl\.temprature; did you mean kt-pfl\.temp"),
    ],
)
def test_the_mistake_of_a_setting_is_named(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        fedkd_flwr.run(given)


def test_an_unknown_method_is_answered_with_similar_ones():
    with pytest.raises(KeyError, match="there is no method 'fedprot'; did you mean fedproto"):
        METHODS["fedprot"]
    assert METHODS.get("fedprot") is None
