"""Strategies in a user's own Flower ServerApp, with a ClientApp that is not of this project."""

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedkd_flwr.engines.in_process import InProcessGrid
from strategies.core.evaluations import DISTILLATION
from strategies.core.plan import RunPlan
from strategies.kt_pfl import KTpFL, KTpFLSettings
from strategies.persfl import PAIRS, PERSONALIZE, PersFL, PersFLSettings

CLIENTS, SAMPLES, CLASSES = 3, 4, 2
SIZES = {"num-examples": 9, "test-size": 5, "validation-size": 4}
COUNTS = {"own-test-correct": 3, "own-test-total": 5, "own-test-loss": 0.5}
VALIDATED = {"own-validation-correct": 2, "own-validation-total": 4, "own-validation-loss": 0.5}


@pytest.fixture
def received():
    return []


@pytest.fixture
def client_app(received):
    """Clients of plain Flower that know the names of the messages, and compute nothing."""
    app = ClientApp()

    def replied(message, context, arrays=None, metrics=None, **info):
        info["partition-id"] = context.node_config["partition-id"]
        content = {"metrics": MetricRecord(metrics or {}), "info": ConfigRecord(info)}
        content["arrays"] = ArrayRecord({name: Array(a) for name, a in (arrays or {}).items()})
        return Message(RecordDict(content), reply_to=message)

    @app.query()
    def query(message, context):
        facts = {"model": "mine", "public-hash": "the same"}
        return replied(message, context, metrics=SIZES, **facts)

    @app.train()
    def train(message, context):
        partition_id, phase = (
            context.node_config["partition-id"],
            message.content["config"]["phase"],
        )
        arrays = {name: a.numpy() for name, a in message.content["arrays"].items()}
        received.append((partition_id, phase, arrays))
        if phase == DISTILLATION:
            distilled = {k.replace("own", "distilled"): v for k, v in (COUNTS | VALIDATED).items()}
            return replied(message, context, metrics=distilled)
        if phase == PERSONALIZE:
            pairs = len(PersFLSettings().grid())
            return replied(message, context, {PAIRS: np.full((pairs, 2), 3, np.int32)})
        if "weights" in arrays:
            return replied(
                message, context, {"weights": arrays["weights"] + np.float32(partition_id)}
            )
        share = np.float32((1 + partition_id) / 4)
        predictions = np.tile(np.array([share, 1 - share]), (SAMPLES, 1))
        return replied(message, context, {"predictions": predictions}, {**COUNTS, **VALIDATED})

    @app.evaluate()
    def evaluate(message, context):
        return replied(message, context, metrics={**COUNTS, **VALIDATED})

    return app


def served(strategy, client_app, initial=None):
    """Return what Flower returns for a strategy in a ServerApp of one's own."""
    app, results = ServerApp(), []

    @app.main()
    def main(grid, context):
        arrays = ArrayRecord({name: Array(a) for name, a in (initial or {}).items()})
        results.append(strategy.start(grid, arrays, num_rounds=strategy.plan.num_server_rounds))

    grid = InProcessGrid(client_app, CLIENTS, {})
    app(grid, Context(1, 1, {}, RecordDict(), {}))
    return results[0]


def plan(**changes):
    return RunPlan(
        num_clients=CLIENTS,
        num_classes=CLASSES,
        public_size=SAMPLES,
        num_server_rounds=2,
        record_answers=False,
        **changes,
    )


def test_kt_pfl_serves_clients_of_plain_flower(client_app, received):
    strategy = KTpFL(plan(), KTpFLSettings(coefficient_learning_rate=0.0))
    result = served(strategy, client_app)
    assert dict(result.evaluate_metrics_clientapp[2])["accuracy_mean"] == pytest.approx(3 / 5)
    phases = [phase for _, phase, _ in received]
    assert phases == ["train"] * 2 * CLIENTS + [DISTILLATION] * CLIENTS
    assert [arrays for _, _, arrays in received[:CLIENTS]] == [{}] * CLIENTS
    # With equal coefficients everybody is taught the mean of 1/4, 2/4 and 3/4.
    for _, _, arrays in received[CLIENTS:]:
        np.testing.assert_allclose(arrays["teacher"], 0.5, rtol=1e-6)


def test_persfl_sends_plain_clients_the_mean_and_then_lets_them_distill(client_app, received):
    strategy = PersFL(plan(), PersFLSettings())
    result = served(strategy, client_app, {"weights": np.zeros(2, np.float32)})
    phases = [phase for _, phase, _ in received]
    assert phases == ["train"] * 2 * CLIENTS + [PERSONALIZE] * CLIENTS
    # Clients of equal size move it by 0, 1 and 2 in each round.
    np.testing.assert_allclose(received[-1][2]["weights"], 2.0)
    np.testing.assert_allclose(result.arrays["weights"].numpy(), 2.0)
