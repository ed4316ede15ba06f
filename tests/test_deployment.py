"""A real federation over TLS: authentication, the numbers of one process, and faults."""

import os
import re
import signal

import federation as fed
import numpy as np
import pytest
from federation import GuardedFederation
from helpers import arrays_of, replacing, run_with, write_image_folder, write_parquet

import fedkd_flwr
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.export import read_card
from strategies.core.rounds import NEW_CLIENTS
from strategies.core.safeguard import SAFEGUARD_COLUMNS

pytestmark = pytest.mark.slow

MODELS = ("mlp", "lenet", "mlp")
SAME = ["accuracy_mean", "accuracy_std", "loss_mean", "numbers_up", "numbers_down"]
STRATEGIES = ("perfed-ckt", "fml", "fedproto")
"""One of the papers, one that exchanges parameters and one that exchanges prototypes.

KT-pFL has the runs with faults.
"""

# Nodes draw their batches themselves, so that only a single batch gives the numbers of one process.
SETTINGS = {**fed.SMALL, "num-clients": 3, "batch-size": 512}

INTRUDERS = {
    "no key": {},
    "unregistered key": {"key": "stranger"},
    "wrong CA": {"key": "node-0", "root": "other/ca.crt"},
    "plain text": {"insecure": True},
}

POLICY = {
    "allow-methods": "soft-predictions,fml,fedproto,persfl",
    "client-split": fed.SMALL["client-split"],
    "allow-counts": True,
    "min-class-count": 3,
}
"""What the nodes allow beyond the defaults. A class of these silos has about six samples."""


def config_for(strategy):
    # Every exchange costs each node a process: evaluate once.
    return {**SETTINGS, "strategy": strategy, "evaluate-every": 2}


@pytest.fixture(scope="module")
def silos(tmp_path_factory):
    """Three nodes with data of their own: image folders and Parquet files."""
    with GuardedFederation(tmp_path_factory.mktemp("silos"), nodes=3) as federation:
        federation.approve()
        for n, model in enumerate(MODELS):
            folder = federation.folder / f"silo-{n}"
            images, labels = fed.images_of(fed.SMALL, n)
            if n % 2:
                data = write_image_folder(folder / "images", images, labels)
            else:
                data = write_parquet(folder / "own.parquet", images, labels)
            federation.node_configs[n] |= {
                "model": model,
                "data-path": str(data),
                "state-dir": str(folder / "state"),
                "models-dir": str(folder / "models"),
                **POLICY,
            }
        federation.start_all()
        yield federation


@pytest.fixture(scope="module")
def processes(silos):
    """A run of each strategy. They overlap, and start one after the other."""
    started = {}
    for strategy in STRATEGIES:
        started[strategy] = silos.start_run(
            {
                **config_for(strategy),
                "output-dir": str(silos.folder / strategy),
                # Nodes keep their models where their own config says.
                "models-dir": str(silos.folder / "of-the-server"),
            }
        )
        # Flower installs the app with the first run, and no two may do so at once. Later, a
        # ServerApp that starts too slowly is started again: several at once may never be done.
        silos.wait_for_text(started[strategy], "Run directory:", seconds=300)
    return started


@pytest.fixture(scope="module")
def intruder_logs(silos, processes):
    """What intruders said who knocked while the last run was going on."""
    fed.make_keys(silos.keys / "other", [])
    fed.make_keys(silos.keys, ["stranger"])
    intruders = {
        name: silos.start(
            "intruder", [*silos.node_command({"partition-id": 0}, **options), "--max-retries", "1"]
        )
        for name, options in INTRUDERS.items()
    }
    assert processes[STRATEGIES[-1]].poll() is None
    for intruder in intruders.values():
        intruder.wait(timeout=fed.patience(300))
    return {name: intruder.log_path.read_text() for name, intruder in intruders.items()}


@pytest.fixture(scope="module", params=STRATEGIES)
def finished(request, silos, processes, intruder_logs):
    """The run of one strategy over the network."""
    return silos.finished_run(processes[request.param], silos.folder / request.param, 600)


def in_process(silos, settings, path, app=client_app):
    nodes = {
        n: {key: node[key] for key in ("model", "data-path", *POLICY)}
        for n, node in silos.node_configs.items()
    }
    return run_with(app, settings, path, nodes=3, node_configs=nodes)[0]


def test_results_agree_with_one_process(finished, silos, tmp_path):
    here = in_process(silos, config_for(finished.config["strategy"]), tmp_path / "run")
    assert list(finished.rounds["replies"]) == [3, 3]
    for column in SAME:
        there = finished.rounds[column].dropna().to_numpy(dtype=float)
        np.testing.assert_allclose(there, here.rounds[column].dropna(), rtol=1e-5)
    by_client = [
        run.clients.dropna(subset="loss").set_index("partition_id") for run in (finished, here)
    ]
    np.testing.assert_allclose(
        by_client[0]["loss"], by_client[1]["loss"].loc[by_client[0].index], rtol=1e-5
    )
    assert list(by_client[0].sort_index()["model"]) == list(MODELS)
    assert finished.matrices.keys() == here.matrices.keys()
    for name, matrix in here.matrices.items():
        np.testing.assert_allclose(finished.matrices[name], matrix, rtol=1e-5, atol=1e-7)


def test_each_node_holds_its_personalized_models(silos, processes):
    runs = {
        strategy: silos.finished_run(processes[strategy], silos.folder / strategy, 600)
        for strategy in STRATEGIES
    }
    assert not (silos.folder / "of-the-server").exists()
    for n in silos.node_configs:
        folder = silos.folder / f"silo-{n}"
        cards = {path: read_card(path) for path in (folder / "models").glob("*/*/*.safetensors")}
        found = [(path, card) for path, card in cards.items() if card["strategy"] in runs]
        assert {card["strategy"] for _, card in found} == set(STRATEGIES)
        for path, card in found:
            run, *names = path.relative_to(folder / "models").parts
            assert re.fullmatch(rf"\d+-{card['run-id']}", run)
            assert names == ["round-000002", f"{n}.safetensors"]
            rows = runs[card["strategy"]].clients.dropna(subset="loss")
            correct = rows.set_index("partition_id").loc[n, "correct"]
            assert card["metrics"]["correct"] == correct
            parameters = fedkd_flwr.load_model(path).parameters()
            assert sum(p.numel() for p in parameters) > 0
        assert list((folder / "state").rglob("round-*.safetensors"))


@pytest.mark.parametrize("name", INTRUDERS)
def test_unauthenticated_nodes_are_refused(name, finished, intruder_logs):
    assert "SuperNode ID" not in intruder_logs[name]
    assert "Failed to initialize the connection" in intruder_logs[name]
    assert set(finished.clients["partition_id"]) == {0, 1, 2}


# ---- Faults ----------------------------------------------------------------------------


def took_part(run, n, server_round):
    rows = run.clients.query(f"partition_id == {n} and round == {server_round}")
    return len(rows) == 1 and rows["numbers_up"].iloc[0] > 0 and rows["failure"].isna().all()


def restart(silos, n):
    def accepted():
        process = silos.start_node(n)
        fed.wait_until(
            lambda: process.poll() is not None or "SuperNode ID" in process.log_path.read_text(),
            fed.patience(90),
            f"node {n} to start",
        )
        return process.poll() is None

    fed.wait_until(accepted, fed.patience(180), f"node {n} to be taken back")


def equal_runs(run, twin):
    """Whether two runs end with the same losses, as far as clients were evaluated in the first."""
    losses = [
        r.clients.dropna(subset="loss").set_index("partition_id")["loss"] for r in (run, twin)
    ]
    return np.allclose(losses[0], losses[1].loc[losses[0].index], rtol=1e-5)


def test_a_killed_node_and_a_frozen_node_do_not_stop_the_others(silos, tmp_path):
    """Node 2 is killed in round 2 and started again, node 1 freezes in round 3 and wakes."""
    settings = {**SETTINGS, "num-server-rounds": 4, "evaluate-every": 4}
    settings["round-timeout"] = fed.patience(40)
    text = "Receiving: train"
    before = {n: node.log_path.read_text().count(text) for n, node in silos.nodes.items()}
    process = silos.start_run({**settings, "output-dir": str(tmp_path / "run")})

    silos.wait_for_text(silos.nodes[2], text, fed.patience(180), before[2] + 2)
    silos.signal_node(2, signal.SIGKILL)
    silos.wait_for_text(process, "this round: client 2,", fed.patience(180))

    silos.wait_for_text(silos.nodes[1], text, fed.patience(120), before[1] + 3)
    silos.signal_node(1, signal.SIGSTOP)
    restart(silos, 2)
    silos.wait_for_text(process, "this round: client 1,", fed.patience(180))
    silos.signal_node(1, signal.SIGCONT)

    run = silos.finished_run(process, tmp_path / "run", 300)
    assert all(took_part(run, 0, r) for r in (1, 2, 3, 4))
    assert [took_part(run, 1, r) for r in (1, 2, 3)] == [True, True, False]
    assert [took_part(run, 2, r) for r in (1, 2)] == [True, False]
    assert took_part(run, 2, 4), process.log_path.read_text()[-3000:]
    assert {0, 2} <= set(run.clients.dropna(subset="loss")["partition_id"])

    def in_this_process(name, late):
        """The same without a network; `late` is whether node 1 trained when it woke."""

        def app(message, context):
            n = context.node_config["partition-id"]
            server_round = message.content.config_records["config"].get("server-round")
            if message.metadata.message_type != "train" or took_part(run, n, server_round):
                return client_app(message, context)
            if not (late and (n, server_round) == (1, 3)):
                # Killed, or not connected and so not asked: it remembers the round before.
                raise RuntimeError("never trained")
            reply = client_app(message, context)
            sent = arrays_of(reply)["predictions"]
            replacing(predictions=np.full_like(sent, np.nan))(reply)
            return reply

        return in_process(silos, settings, tmp_path / name, app)

    # After a minute of sleep Flower may take the node's training for dead and end it.
    assert equal_runs(run, in_this_process("late", True)) or equal_runs(
        run, in_this_process("ended", False)
    )


OUTCOME = re.compile(r"Continuing after round (\d)|written by process (\d+) ")


def resume_as_documented(silos, config):
    """Start a resumed run; where it is refused, end the process that it names and try again."""
    for _ in range(2):
        process = silos.start_run(config)
        said = fed.wait_until(
            lambda process=process: OUTCOME.search(process.log_path.read_text()),
            fed.patience(180),
            f"an outcome in {process.log_path}",
        )
        if said[1]:
            return process, int(said[1])
        process.wait(timeout=fed.patience(60))
        fed.signal_if_alive(int(said[2]), signal.SIGKILL)
    raise AssertionError(process.log_path.read_text()[-3000:])


def test_a_run_continues_after_server_app_and_superlink_are_killed(silos, tmp_path):
    settings = {**SETTINGS, "num-server-rounds": 3, "evaluate-every": 3, "safeguard": "blend"}
    resumed = {**settings, "output-dir": str(tmp_path / "run"), "resume": True}

    process = silos.start_run({**resumed, "resume": False})
    silos.wait_for_text(process, "Round 1/3", fed.patience(240))
    hung = silos.server_app_pid()
    os.kill(hung, signal.SIGSTOP)
    silos.stop(process)
    process, completed = resume_as_documented(silos, resumed)
    assert completed == 1
    assert silos.server_app_pid() not in (hung, None)

    silos.wait_for_text(process, "Round 2/3", fed.patience(240))
    os.killpg(silos.superlink.pid, signal.SIGKILL)
    silos.superlink.wait()
    silos.stop(process)
    assert not fedkd_flwr.load_run(tmp_path / "run").finished

    silos.start_superlink()
    # A node that was receiving when the SuperLink died would answer one message late.
    silos.end_run(process)
    silos.stop(*silos.nodes.values())
    for n in silos.nodes:
        restart(silos, n)
    process, completed = resume_as_documented(silos, resumed)
    assert completed == 2
    run = silos.finished_run(process, tmp_path / "run", 300)

    here = in_process(silos, settings, tmp_path / "here")
    assert list(run.rounds["round"]) == [1, 2, 3]
    keys = ["round", "partition_id"]
    assert run.clients[keys].values.tolist() == here.clients[keys].values.tolist()
    # The private models of the safeguard continue too.
    guarded = [f"{name}_mean" for name in SAFEGUARD_COLUMNS]
    for name in ("accuracy_mean", "loss_mean", "numbers_up", *guarded):
        there = run.rounds[name].dropna().to_numpy(dtype=float)
        np.testing.assert_allclose(there, here.rounds[name].dropna(), rtol=1e-5)
    for name, matrix in here.matrices.items():
        np.testing.assert_allclose(run.matrices[name], matrix, rtol=1e-5, atol=1e-7)


def test_a_silo_joins_a_finished_run_of_persfl(silos, tmp_path):
    """Node 2 gets a model in one process as here; node 1 has another architecture."""
    settings = {
        **SETTINGS, "strategy": "persfl", "models": "mlp", "num-clients": 1, "evaluate-every": 2,
        "persfl.imitation": "0,0.5", "persfl.temperatures": "2", "persfl.distillation-epochs": 1,
    }  # fmt: skip
    more = {**settings, "num-clients": 3, "resume": True}
    process = silos.start_run({**settings, "output-dir": str(tmp_path / "run")})
    before = silos.finished_run(process, tmp_path / "run", 300)
    process = silos.start_run({**more, "output-dir": str(tmp_path / "run")})
    process.wait(timeout=fed.patience(300))
    there = silos.finished_run(process, tmp_path / "run", 300)
    in_process(silos, settings, tmp_path / "here")
    here = in_process(silos, more, tmp_path / "here")
    assert there.client_rows == before.client_rows
    rows = [run.table(NEW_CLIENTS).set_index("partition_id").loc[2] for run in (there, here)]
    for name in ("loss", "accuracy", "lambda", "teacher_round", "global_accuracy"):
        np.testing.assert_allclose(rows[0][name], rows[1][name], rtol=1e-5)
