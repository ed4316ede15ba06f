"""A custom client that forgets ``yield from`` is refused, and the error says what to write."""

import pytest

import fedkd_flwr
from fedkd_flwr.clients.base import PersonalClient, TrainReply
from fedkd_flwr.clients.kt_pfl import KTpFLClient
from fedkd_flwr.methods import REGISTERED
from fedkd_flwr.training.jobs import PredictJob
from strategies.core.replies import TooFewRepliesError
from strategies.kt_pfl import KTpFL
from strategies.local import Local


class WithoutYield(PersonalClient):
    def train(self, received, server_round, phase):
        self.train_locally(server_round)
        return TrainReply()


class WithoutYieldFrom(PersonalClient):
    def train(self, received, server_round, phase):
        self.train_locally(server_round)
        yield PredictJob(self.model, self.data.train_images)
        return TrainReply()


class YieldInsteadOfYieldFrom(PersonalClient):
    def train(self, received, server_round, phase):
        yield self.train_locally(server_round)
        return TrainReply()


class NoReply(PersonalClient):
    def train(self, received, server_round, phase):
        return self.train_locally(server_round)


class WithoutYieldFromSuper(KTpFLClient):
    def train(self, received, server_round, phase):
        super().train(received, server_round, phase)
        predictions = yield from self.predict(self.public_images(server_round), 1.0)
        return self.release(predictions, {}, server_round)


class Correct(PersonalClient):
    def train(self, received, server_round, phase):
        loss = yield from self.train_locally(server_round)
        return TrainReply(metrics={"train-loss": loss})


REASONS = {
    WithoutYield: "WithoutYield.train contains no `yield from`",
    WithoutYieldFrom: r"WithoutYieldFrom.train, line \d+: train_locally did not run; "
    "write `yield from` before the call",
    YieldInsteadOfYieldFrom: "yielded a generator, not a job; write `yield from`",
    NoReply: "NoReply.train returned a float; return a TrainReply",
    # Not `self.train(...)`, which would call itself.
    WithoutYieldFromSuper: "train did not run; write `yield from` before the call",
}


@pytest.fixture
def run_client(small, tmp_path):
    """Run a client in this process, its registration removed afterwards."""

    def run(client, strategy=Local, **changes):
        fedkd_flwr.register("custom", strategy, client)
        settings = {**small, "models": "mlp", "num-server-rounds": 1, **changes}
        return fedkd_flwr.run(settings, strategy="custom", output_dir=tmp_path / "run")

    yield run
    REGISTERED.pop("custom", None)


@pytest.mark.parametrize("cohort", ["off", "on"])
@pytest.mark.parametrize("client", REASONS)
def test_a_forgotten_yield_from_is_refused(client, cohort, run_client):
    strategy = KTpFL if issubclass(client, KTpFLClient) else Local
    with pytest.raises(TooFewRepliesError, match=REASONS[client]):
        run_client(client, strategy, cohort=cohort)


@pytest.mark.parametrize("cohort", ["off", "on"])
def test_a_correct_client_runs(cohort, run_client):
    run = run_client(Correct, cohort=cohort)
    assert run.clients["failure"].isna().all()
    assert run.clients["train_loss"].notna().all()
