"""Byzantine clients attack every method: the run continues, and no attack is averaged in.

In each round seven of nine clients corrupt their training and evaluation replies, each in another
way. The run must have the results of a run in which these clients raise an error instead.
"""

import io

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from helpers import breaking, most_of_them_slow, run_with

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.methods import METHODS
from strategies.core.method_record import Need
from strategies.core.replies import (
    LONGEST_REASON,
    ExpectedArray,
    InvalidReplyError,
    checked_arrays,
    error_reason,
    shortened,
)
from strategies.fedkma import SHARE_KNOWLEDGE
from strategies.persfl import PERSONALIZE

CLIENTS = 9
BYZANTINE = tuple(range(1, CLIENTS - 1))
"""Clients that attack; the first and the last are honest."""


def spoil_first_array(change):
    """Return an attack on the first array of a reply, or with an array that was not requested."""

    def attack(content):
        arrays = {name: array.numpy() for name, array in content["arrays"].items()}
        name = next(iter(arrays), "surplus")
        arrays[name] = change(np.array(arrays.get(name, np.zeros(3, dtype=np.float32))))
        content["arrays"] = ArrayRecord({key: Array(value) for key, value in arrays.items()})

    return attack


def filled_with(number):
    def change(array):
        array = array.astype(np.float32)
        array.reshape(-1)[0] = number
        return array

    return spoil_first_array(change)


def with_metrics(**numbers):
    """Return an attack that adds or replaces metrics, with underscores for dashes."""

    def attack(content):
        spoiled = {name.replace("_", "-"): value for name, value in numbers.items()}
        content["metrics"] = MetricRecord({**dict(content["metrics"]), **spoiled})

    return attack


def drop_arrays(content):
    """Send no array, or one where none is due."""
    surplus = {} if len(content["arrays"]) else {"surplus": Array(np.zeros(2))}
    content["arrays"] = ArrayRecord(surplus)


def add_array(content):
    content["arrays"]["surplus"] = Array(np.zeros(2, dtype=np.float32))


def claim_another_partition(content):
    content["info"] = ConfigRecord({"partition-id": 0, "model": "mlp"})


def claim_a_list_of_partitions(content):
    content["info"] = ConfigRecord({"partition-id": list(BYZANTINE)})


def half_a_validation(content):
    numbers = dict(content["metrics"])
    numbers.pop("own-validation-correct", None)
    half = {"own-test-correct": 0, "own-test-total": 1, "own-validation-total": 7}
    content["metrics"] = MetricRecord(numbers | half)


def loss_alone(content):
    content["metrics"] = MetricRecord({"own-test-loss": 0.5})


def more_of_a_class(content):
    numbers = {"own-test-correct": 1, "own-test-total": 1, "class-0-correct": 1}
    content["metrics"] = MetricRecord(
        {**numbers, **dict(content["metrics"]), "class-0-total": 10**6}
    )


def with_answers(change):
    """Return an attack on which test images were answered right."""

    def attack(content):
        content["info"]["answers"] = change(content["info"].get("answers", b"\0"))

    return attack


def without_info(content):
    del content["info"]


ATTACKS = {
    "NaN": filled_with(np.nan),
    "infinity": filled_with(np.inf),
    "1e38": filled_with(1e38),
    "another shape": spoil_first_array(lambda array: np.zeros(7, dtype=np.float32)),
    "another type": spoil_first_array(lambda array: array.astype(np.float64)),
    "text": spoil_first_array(lambda array: np.full(array.shape, "a")),
    "no arrays": drop_arrays,
    "one array more": add_array,
    "another partition": claim_another_partition,
    "a list for a partition": claim_a_list_of_partitions,
    "nobody": without_info,
    "too many correct": with_metrics(own_test_correct=10**6, own_test_total=1),
    "too many of everything": with_metrics(own_test_correct=10**6, own_test_total=10**6),
    "a fraction of an answer": with_metrics(own_test_correct=0.5, own_test_total=1),
    "validation counts beyond all bounds": with_metrics(
        own_test_correct=1, own_test_total=1, own_validation_correct=10**6, own_validation_total=1
    ),
    "half a validation": half_a_validation,
    "a loss of NaN": with_metrics(own_test_loss=float("nan"), train_loss=float("nan")),
    "a loss of 1e38": with_metrics(own_test_loss=1e38, train_loss=1e38),
    "a loss without counts": loss_alone,
    "a calibration beyond 1": with_metrics(calibration_error=1.5),
    "classes that do not add up": more_of_a_class,
    "lists for numbers": with_metrics(own_test_correct=[1, 2], own_test_loss=[0.0]),
    "answers to more images": with_answers(lambda answers: answers + b"\0"),
    "10 MB of answers": with_answers(lambda answers: bytes(10**7)),
    "one more right answer": with_answers(lambda answers: bytes([answers[0] ^ 128]) + answers[1:]),
    "answers as text": with_answers(lambda answers: "all of them"),
    "a column of the table": with_metrics(round=3),
    "the name of a client": with_metrics(partition_id=0),
}


ROUNDS = len(ATTACKS) // len(BYZANTINE)


def name_of_attack(server_round, partition_id):
    """Return the attack of a client in a round: each is made once."""
    return list(ATTACKS)[len(BYZANTINE) * (server_round - 1) + BYZANTINE.index(partition_id)]


def is_attacked(message, context):
    is_query = message.metadata.message_type == "query"
    return not is_query and context.node_config["partition-id"] in BYZANTINE


def attacking(message, context):
    """Serve as the real app does, but spoil every reply of the Byzantine clients."""
    reply = client_app(message, context)
    if is_attacked(message, context):
        server_round = message.content.config_records["config"]["server-round"]
        name = name_of_attack(server_round, context.node_config["partition-id"])
        ATTACKS[name](reply.content)
    return reply


def silent(message, context):
    if is_attacked(message, context):
        raise RuntimeError("this client has given up")
    return client_app(message, context)


def run_among(app, strategy, small, path, rounds=ROUNDS):
    one_model = Need.ONE_ARCHITECTURE in METHODS[strategy].record.needs
    flat = {
        **small,
        "strategy": strategy,
        "models": "mlp" if one_model else "mlp,lenet",
        "max-samples": 240,
        "num-clients": CLIENTS,
        "num-server-rounds": rounds,
        "measures": "calibration,classes",
        # Its randomized response is secret otherwise, and differs between runs.
        **({"soft-predictions.noise-seed": 0} if strategy == "privatekt" else {}),
    }
    return run_with(app, flat, path)[0]


def of_honest(run, columns):
    return run.clients[~run.clients["partition_id"].isin(BYZANTINE)][columns].to_numpy()


@pytest.mark.parametrize("strategy", most_of_them_slow(METHODS))
def test_no_attack_changes_the_results_of_other_clients(strategy, small, tmp_path):
    attacked = run_among(attacking, strategy, small, tmp_path / "attacked")
    quiet = run_among(silent, strategy, small, tmp_path / "silent")
    rows = attacked.clients[attacked.clients["partition_id"].isin(BYZANTINE)]
    names = map(name_of_attack, rows["round"], rows["partition_id"])
    failed = dict(zip(names, rows["failure"].notna(), strict=True))
    assert failed == dict.fromkeys(ATTACKS, True)
    columns = [
        "round",
        "partition_id",
        "accuracy",
        "loss",
        "train_loss",
        "calibration_error",
        "held_accuracy",
    ]
    columns = [name for name in columns if name in quiet.clients or name != "train_loss"]
    np.testing.assert_array_equal(of_honest(attacked, columns), of_honest(quiet, columns))
    np.testing.assert_equal(attacked.matrices, quiet.matrices)
    for column in ("accuracy_mean", "accuracy_weighted", "loss_mean", "validation_accuracy_mean"):
        assert list(attacked.rounds[column]) == list(quiet.rounds[column])


@pytest.mark.parametrize(
    ("strategy", "phase"), [("fedkma", SHARE_KNOWLEDGE), ("persfl", PERSONALIZE)]
)
def test_an_attack_in_a_second_exchange_affects_only_the_attacker(strategy, phase, small, tmp_path):
    attacker = BYZANTINE[0]
    app = breaking(lambda reply: filled_with(np.nan)(reply.content), attacker, phase)
    finished = run_among(app, strategy, small, tmp_path / "run", 2)
    last = finished.clients[finished.clients["round"] == 2].set_index("partition_id")
    assert "NaN" in last["failure"][attacker] or "pairs holds float32" in last["failure"][attacker]
    assert last["failure"].drop(attacker).isna().all()
    assert last["accuracy"].notna().all()
    for matrix in finished.matrices.values():
        assert np.isfinite(matrix).all()


def npy(header):
    """Return the bytes of a NumPy file with a header of one's own."""
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def npz():
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3))
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"made up",
        npz(),
        npz()[:60],
        npy("{'descr': ('<f4'"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999,), }"),
    ],
)
def test_bytes_that_are_no_array_are_refused(data):
    array = Array(dtype="float32", shape=(3,), stype="numpy.ndarray", data=data)
    with pytest.raises(InvalidReplyError, match=r"^a (cannot be decoded|is not an array)"):
        checked_arrays({"a": array}, {"a": ExpectedArray((3,))})


@pytest.mark.parametrize("number", [1e9, -1e9])
def test_a_huge_number_is_refused_whatever_its_sign(number):
    values = np.array([0, number, 0], dtype=np.float32)
    with pytest.raises(InvalidReplyError, match="a holds a number beyond"):
        checked_arrays({"a": Array(values)}, {"a": ExpectedArray((3,))})


@pytest.mark.parametrize("reason", ["", " ", "\n \n"])
def test_an_error_without_a_message_still_has_a_reason(reason):
    message = Message(RecordDict(), 1, "train")
    assert (
        error_reason(Message(Error(1, reason), reply_to=message)) == "it failed: it gave no reason"
    )


def test_a_long_reason_is_not_read_whole():
    message = Message(RecordDict(), 1, "train")
    reason = "word " * 10**6 + "\nthe last line"
    assert error_reason(Message(Error(1, reason), reply_to=message)) == "it failed: the last line"
    assert len(shortened("word " * 10**6)) <= LONGEST_REASON


def test_what_a_client_reports_when_it_joins_is_checked(small, tmp_path):
    """Sizes weigh in averages, so a node that tells impossible ones stays out."""
    sizes = {0: float("inf"), 1: 1e38, 2: [3, 4], 3: 30}

    def app(message, context):
        reply = client_app(message, context)
        if message.metadata.message_type == "query":
            reply.content["metrics"]["num-examples"] = sizes[context.node_config["partition-id"]]
        return reply

    finished, _ = run_with(app, small, tmp_path / "run", strategy="fedavg", models="mlp")
    assert set(finished.clients["partition_id"]) == {3}
