"""Which test images a model gets right: sent, checked, recorded, and read again."""

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from helpers import breaking, client_of, read_lines, run_with, write_lines

import fedkd_flwr
from fedkd_flwr.analysis.client_models import client_data
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.clients.messages import Request
from fedkd_flwr.config import read_config
from fedkd_flwr.runs import DamagedRunError, load_run
from strategies.core.masks import (
    as_text,
    check_answers,
    from_text,
    packed_answers,
    unpacked_answers,
)
from strategies.core.replies import InvalidReplyError


def test_a_bit_an_image():
    right = np.array([True, False, True, True, False, False, False, False, True])
    # 0b10110000 and 0b10000000.
    assert packed_answers(right) == bytes([0xB0, 0x80])
    assert unpacked_answers(packed_answers(right), 9).tolist() == right.tolist()
    assert from_text(as_text(packed_answers(right))) == packed_answers(right)


@pytest.mark.parametrize(
    ("answers", "correct", "images"),
    [
        (b"\xb0\x80", 4, 17),  # a byte is missing
        (b"\xb0\x80", 4, 8),  # a byte too many
        (b"\xb0\x80", 5, 9),  # another number of right answers
        (b"\xb0\xc0", 5, 9),  # a right answer after the last image
        (b"\xb0\xc0", 4, 9),
    ],
)
def test_answers_that_contradict_the_counts_are_refused(answers, correct, images):
    check_answers(b"\xb0\x80", 4, 9)
    with pytest.raises(InvalidReplyError, match="answers"):
        check_answers(answers, correct, images)


@pytest.mark.parametrize("strategy", ["local", "fedavg"])
@pytest.mark.parametrize("cohort", ["on", "off"])
def test_a_run_records_what_its_models_answer(strategy, cohort, small, tmp_path):
    """With counts in the train reply and in a message of their own, alone and in a cohort."""
    changes = {"strategy": strategy, "models": "mlp", "cohort": cohort}
    models = {"models-dir": str(tmp_path / "models")}
    run = fedkd_flwr.run({**small, **changes, **models}, output_dir=tmp_path / "run")
    for n, row in run.clients[run.clients["round"] == 2].set_index("partition_id").iterrows():
        data = client_data(run, n)
        model = fedkd_flwr.load_model(tmp_path / "models" / f"{n}.safetensors")
        expected = (model(data.test_images).argmax(dim=1) == data.test_labels).tolist()
        assert unpacked_answers(from_text(row["answers"]), int(row["total"])).tolist() == expected


def test_only_the_last_and_the_chosen_round_hold_answers(small, tmp_path):
    run = fedkd_flwr.run(
        {**small, "strategy": "local", "num-server-rounds": 4}, output_dir=tmp_path / "run"
    )
    chosen = run.rounds.set_index("round")["validation_accuracy_mean"].cummax()
    best_so_far = {int(t) for t in chosen.index if t == 1 or chosen[t] > chosen[t - 1]}
    with_answers = set(run.clients.dropna(subset="answers")["round"])
    assert with_answers == best_so_far | {4}
    assert run.summary["validation_round"]["round"] in with_answers


def test_a_client_that_keeps_its_answers_stays_in_the_run(small, tmp_path):
    app = breaking(lambda reply: reply.content["info"].pop("answers", None))
    run, _ = run_with(app, small, tmp_path / "run", strategy="local")
    last = run.clients[run.clients["round"] == 2].set_index("partition_id")
    assert last["failure"].isna().all()
    assert last["answers"].isna().tolist() == [False, True, False, False]


def test_answers_stay_with_the_clients_if_the_run_does_not_record_them(small, tmp_path):
    changes = {"strategy": "local", "record-answers": False}
    run = fedkd_flwr.run({**small, **changes}, output_dir=tmp_path / "off")
    assert "answers" not in run.clients

    unasked = breaking(lambda reply: reply.content["info"].update(answers=b"\0"))
    attacked, _ = run_with(unasked, small, tmp_path / "unasked", **changes)
    failures = attacked.clients.set_index("partition_id")["failure"].dropna()
    assert set(failures.index) == {1}
    assert failures.str.contains("answers, which were not requested").all()
    assert "answers" not in load_run(attacked.path).clients


def test_a_comparison_pairs_the_answers_of_two_methods(small, tmp_path):
    flat = {**small, "models": "mlp", "num-server-rounds": 1}
    for strategy in ("local", "fedavg"):
        fedkd_flwr.run({**flat, "strategy": strategy}, output_dir=tmp_path / strategy)
    compared = compare(tmp_path)
    paired = compared.clients.dropna(subset="gain")
    won, lost = paired["won"], paired["lost"]
    assert (won + lost).sum() > 0
    assert (won - lost).tolist() == pytest.approx((paired["gain"] * paired["test_images"]).tolist())
    assert any("on the images that only one of the two" in note for note in compared.notes)

    file = tmp_path / "local" / "clients.jsonl"
    rows = read_lines(file)
    write_lines(file, [{k: v for k, v in row.items() if k != "answers"} for row in rows])
    counted = compare(tmp_path)
    assert counted.clients["lost"].isna().all() and "harmed_shown" not in counted.table

    write_lines(file, [{**row, "answers": "AAAA"} for row in rows])
    with pytest.raises(DamagedRunError, match="answers of client 0 do not fit their counts"):
        compare(tmp_path)


@pytest.mark.parametrize("trusts", [True, False])
def test_a_node_that_does_not_trust_the_server_sends_no_answers(trusts, small):
    run_config = read_config({**small, "strategy": "local"}).flat()
    node = {"partition-id": 0, "trust-server": trusts, "allow-counts": True, "min-class-count": 0}
    client = client_of(small, context=Context(1, 1, node, RecordDict(), run_config))
    reply = client.session.serve_evaluation(Request(server_round=1))
    assert reply.metrics["own-test-total"] > 0
    assert bool(reply.answers) == trusts
