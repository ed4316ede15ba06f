"""A cohort's clients are suspended at their jobs: modes, random states, failures, yields."""

from functools import partial

import pytest
import torch
from torch import nn

import fedkd_flwr
from fedkd_flwr.clients.parameters import FedAvgClient
from fedkd_flwr.methods import METHODS
from fedkd_flwr.training.cohort import run_together
from fedkd_flwr.training.jobs import PredictJob, TrainJob, result_of
from fedkd_flwr.training.loop import build_optimizer
from fedkd_flwr.training.losses import cross_entropy

IMAGES, LABELS = torch.ones(4, 3), torch.tensor([0, 1, 0, 1])


def predicted():
    return result_of(PredictJob(nn.Linear(3, 2), IMAGES))


def trained():
    model = nn.Linear(3, 2)
    optimizer = build_optimizer("sgd", model.parameters(), 0.1)
    return result_of(TrainJob(model, cross_entropy, optimizer, [(IMAGES, LABELS)]))


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode, partial(torch.autocast, "cpu", torch.bfloat16)]
)
def test_a_client_suspended_in_a_mode_leaves_others_in_theirs(mode):
    def modes():
        inference, autocast = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        return torch.is_grad_enabled(), inference, autocast

    def in_mode():
        outside = modes()
        with mode():
            inside = modes()
            predicted()
            assert modes() == inside
        return outside == modes() != inside

    def without():
        before = modes()
        trained()
        trained()
        return modes() == before

    before = modes()
    assert run_together([in_mode, without, in_mode], "cpu") == [True, True, True]
    assert modes() == before


def test_each_client_has_a_random_state_of_its_own():
    def client(seed):
        torch.manual_seed(seed)
        first = float(torch.rand(1))
        predicted()
        return first, float(torch.rand(1))

    before = torch.get_rng_state()
    expected = [client(seed) for seed in (1, 2)]
    torch.set_rng_state(before)
    assert run_together([partial(client, seed) for seed in (1, 2)], "cpu") == expected
    assert torch.equal(torch.get_rng_state(), before)


def test_suspended_clients_are_closed_if_the_cohort_stops(monkeypatch):
    closed = []

    def client(number):
        try:
            predicted()
        finally:
            closed.append(number)

    def interrupted(jobs):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedkd_flwr.training.cohort._do", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_together([partial(client, number) for number in range(3)], "cpu")
    assert closed == [0, 1, 2]


class Yielding(FedAvgClient):
    """A client as it was written for version 0.1.0."""

    def train(self, received, server_round, phase):
        reply = yield from super().train(received, server_round, phase)
        return reply


class Wordless(FedAvgClient):
    def train(self, received, server_round, phase):
        self.receive_model(received)


@pytest.mark.parametrize("cohort", ["on", "off"])
@pytest.mark.parametrize(
    ("client", "words"),
    [
        (Yielding, r"Yielding.train yields jobs; it is a plain function now: remove"),
        (Wordless, r"Wordless.train returned a NoneType; return a TrainReply"),
    ],
)
def test_a_client_without_a_reply_is_refused(client, words, cohort, small, tmp_path):
    fedkd_flwr.register("own", METHODS["fedavg"].strategy, client)
    with pytest.raises(RuntimeError, match=words):
        fedkd_flwr.run(small, strategy="own", models="mlp", cohort=cohort, output_dir=tmp_path)
