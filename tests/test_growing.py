"""A silo that comes later: a run is continued with more clients than it was started with."""

import numpy as np
import pandas as pd
import pytest
from helpers import Witness, breaking, most_of_them_slow, raising, run_with, write_image_folder

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.data.sources import load_images
from fedkd_flwr.engines.in_process import InProcessGrid
from fedkd_flwr.grids import FastPollingGrid
from fedkd_flwr.runs import (
    RunDirectoryError,
    load_run,
    read_checkpoint,
)
from fedkd_flwr.server_app import check_run
from strategies.core.plan import PlanSettings
from strategies.core.replies import TooFewRepliesError
from strategies.core.rounds import NEW_CLIENTS
from strategies.core.state import padded, with_equal_weights, with_means
from strategies.persfl import PERSONALIZE
from tests.stored_runs import SUPERNET

BEFORE, AFTER = 3, 4
TINY_SUPERNET = {**SUPERNET, "supernet-channels": 2, "supernet-nodes": 1}
METHODS_THAT_GROW = [
    "kt-pfl", "sim-pfl", "topk-pfl", "perfed-ckt", "fedmd", "kt-pfl-params", "fedavg", "fedper",
    "scaffold", "ditto", "fedamp", "fedfomo", "pfedhn", "hypcluster", "fesem", "fd", "lg-fedavg",
    "feddf", "fml", "fedkma", "fedkma-uniform", "fednas",
]  # fmt: skip


@pytest.fixture(scope="module")
def silos(tmp_path_factory):
    """One folder of 30 digits a silo; return the node configs."""
    images = load_images("digits")
    folder = tmp_path_factory.mktemp("silos")
    configs = {}
    for n in range(AFTER):
        own = slice(30 * n, 30 * (n + 1))
        pixels, labels = images.images[own, 0].numpy(), images.labels[own].tolist()
        path = write_image_folder(folder / str(n), pixels, labels)
        configs[n] = {"data-path": str(path), "num-partitions": 0}
    return configs


def settings_of(small, folder, strategy):
    clusters = {"perfed-ckt.clusters": 2, "hypcluster.clusters": 2, "fesem.clusters": 2}
    return {
        **small, **clusters, "strategy": strategy, "models": "mlp", "num-clients": BEFORE,
        "num-server-rounds": 1, "state-dir": str(folder / "state"), "connect-timeout": 0.1,
        "kt-pfl.top-k": 1, **(TINY_SUPERNET if strategy.startswith(("fedkma", "fednas")) else {}),
    }  # fmt: skip


def grown(app, settings, folder, silos):
    more = {"num-clients": AFTER, "num-server-rounds": 3, "resume": True}
    return run_with(app, {**settings, **more}, folder / "run", node_configs=silos)


@pytest.mark.parametrize("strategy", most_of_them_slow(METHODS_THAT_GROW))
def test_a_silo_joins_a_resumed_run(small, tmp_path, silos, strategy):
    settings = settings_of(small, tmp_path, strategy)
    witness = Witness()
    run_with(witness, settings, tmp_path / "run", node_configs=silos)
    run, _ = grown(witness, settings, tmp_path, silos)
    assert run.rounds["replies"].tolist() == [BEFORE, AFTER, AFTER]
    assert run.rounds["failures"].tolist() == [0, 0, 0]
    assert witness.trained(2) == [0, 1, 2, 3]
    assert run.config["num-clients"] == AFTER
    last = run.clients[run.clients["round"] == 3]
    assert last["accuracy"].notna().sum() == AFTER
    for name, matrix in run.matrices.items():
        assert len(matrix) == 3, name
        assert np.isfinite(matrix[-1]).all(), name


def test_the_new_row_and_column_of_c_are_one_nth(small, tmp_path, silos):
    settings = {**settings_of(small, tmp_path, "kt-pfl"), "kt-pfl.coefficient-learning-rate": 0.0}
    witness = Witness()
    run_with(witness, settings, tmp_path / "run", node_configs=silos)
    teachers = read_checkpoint(tmp_path / "run").state["teachers"]
    run, _ = grown(witness, settings, tmp_path, silos)
    np.testing.assert_allclose(run.matrices["coefficients"][1], np.full((4, 4), 0.25))
    assert np.isnan(run.matrices["coefficients"][0, 3]).all()
    # Its first teacher is the mean of the others' teachers.
    first = witness.down[2, "train", 3]["teacher"]
    np.testing.assert_allclose(first, teachers.mean(axis=0), atol=1e-6)


@pytest.mark.parametrize(
    ("strategy", "direction", "server_round", "kinds"),
    [("kt-pfl-params", "up", 1, ["weights"]), ("fedkma", "down", 2, ["weights", "alphas"])],
)
def test_a_silo_that_joins_gets_the_mean_of_the_others_models(
    strategy, direction, server_round, kinds, small, tmp_path, silos
):
    """Of those that they sent, or that were mixed for them."""
    settings = settings_of(small, tmp_path, strategy)
    settings["kt-pfl-params.coefficient-learning-rate"] = 0.0
    witness = Witness()
    run_with(witness, settings, tmp_path / "run", node_configs=silos)
    grown(witness, settings, tmp_path, silos)
    models = getattr(witness, direction)
    for kind in kinds:
        others = [models[server_round, "train", n][kind] for n in range(BEFORE)]
        received = witness.down[2, "train", 3][kind]
        np.testing.assert_allclose(received, np.mean(others, axis=0), atol=1e-6)


def test_a_run_with_noise_goes_on_as_it_was_after_an_attempt_with_more_silos(
    small, tmp_path, silos
):
    """What the silo that was to join has released in the attempt is still counted."""

    def fails(message, context):
        if message.metadata.message_type == "train":
            raise RuntimeError("gone")
        return client_app(message, context)

    noise = {"soft-predictions.noise-multiplier": 1.0, "soft-predictions.clip-norm": 1.0}
    settings = {**settings_of(small, tmp_path, "kt-pfl"), **noise}
    run_with(client_app, settings, tmp_path / "run", node_configs=silos)
    with pytest.raises(TooFewRepliesError):
        grown(fails, settings, tmp_path, silos)
    more = {"num-server-rounds": 2, "resume": True}
    run, _ = run_with(client_app, settings, tmp_path / "run", node_configs=silos, **more)
    assert run.rounds["replies"].tolist() == [BEFORE, BEFORE]
    assert read_checkpoint(run.path).state["releases"].tolist() == [3, 3, 3, 1]


def test_earlier_rows_keep_their_proportions():
    weights = np.array([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0], [0.1, 0.1, 0.8]])
    more = with_equal_weights(weights, 5)
    np.testing.assert_allclose(more.sum(axis=1), 1)
    np.testing.assert_allclose(more[:3, :3], 0.6 * weights)
    np.testing.assert_allclose(more[3:], 0.2)
    np.testing.assert_allclose(more[:, 3:], 0.2)
    np.testing.assert_array_equal(with_equal_weights(weights, 3), weights)


def test_rows_of_clients_that_join():
    rows = np.array([[1.0, 2.0], [3.0, 6.0]], dtype=np.float32)
    np.testing.assert_array_equal(with_means(rows, 4), [[1, 2], [3, 6], [2, 4], [2, 4]])
    assert with_means(rows, 4).dtype == np.float32
    assert len(with_means(rows[:0], 4)) == 0
    np.testing.assert_array_equal(padded(np.array([0, 1]), 3, -1), [0, 1, -1])
    np.testing.assert_array_equal(padded(rows, 3), [[1, 2], [3, 6], [0, 0]])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num-clients": 2}, "num-clients = 2 is less than the 3 clients of the run"),
        ({"num-clients": 4, "new-clients": 0.25}, "cannot be continued with another new-clients"),
    ],
)
def test_what_is_refused(small, tmp_path, silos, changes, sentence):
    settings = settings_of(small, tmp_path, "local")
    run_with(Witness(), settings, tmp_path / "run", node_configs=silos)
    more = {"num-server-rounds": 3, "resume": True, **changes}
    with pytest.raises(ConfigError, match=sentence):
        run_with(Witness(), {**settings, **more}, tmp_path / "run", node_configs=silos)


def test_on_one_machine_the_data_would_be_divided_anew(small, tmp_path, silos):
    settings = settings_of(small, tmp_path, "local")
    run_with(Witness(), settings, tmp_path / "run", node_configs=silos)
    more = {"num-clients": AFTER, "num-server-rounds": 3, "resume": True}
    more["output-dir"] = str(tmp_path / "run")
    with pytest.raises(ConfigError, match="can grow only in a deployment"):
        check_run(read_config({**settings, **more}))
    assert load_run(tmp_path / "run").finished


# ---- A finished run of PersFL receives newcomers without further rounds -----------------


def persfl_of(small, folder, strategy="persfl", clients=BEFORE, **changes):
    """Return settings with which clients choose different teachers, and 3 is the new client."""
    ids = [
        PlanSettings(num_clients=AFTER, new_clients=0.25, seed=n).new_client_ids for n in range(9)
    ]
    return {
        **settings_of(small, folder, strategy), "seed": ids.index([3]), "num-clients": clients,
        "num-server-rounds": 3, "learning-rate": 1.0, "local-epochs": 5, "momentum": 0.0,
        "persfl.imitation": "0,0.5", "persfl.temperatures": "1,5", **changes,
    }  # fmt: skip


def received(settings, folder, silos, app=client_app, **changes):
    more = {"num-clients": AFTER, "resume": True, **changes}
    return run_with(app, {**settings, **more}, folder / "run", node_configs=silos)[0]


def files_in(folder):
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != "lock")
    return {file: file.read_bytes() for file in files}


def over_a_network(*arguments):
    return FastPollingGrid(InProcessGrid(*arguments))


@pytest.mark.parametrize(
    ("strategy", "grid_type"),
    [
        ("persfl", InProcessGrid),
        pytest.param("persfl", over_a_network, marks=pytest.mark.slow),
        pytest.param("persfl-gd", InProcessGrid, marks=pytest.mark.slow),
    ],
)
def test_a_newcomer_gets_the_model_of_a_new_client(small, tmp_path, silos, strategy, grid_type):
    """The same in every digit as a client that the run kept out of its training."""
    settings = persfl_of(small, tmp_path, strategy)
    run_with(client_app, settings, tmp_path / "run", grid_type, node_configs=silos)
    more = {"num-clients": AFTER, "resume": True}
    run, _ = run_with(client_app, settings, tmp_path / "run", grid_type, node_configs=silos, **more)
    apart = persfl_of(small, tmp_path / "apart", strategy, AFTER, **{"new-clients": 0.25})
    expected, _ = run_with(client_app, apart, tmp_path / "apart/run", node_configs=silos)
    columns = [c for c in expected.table(NEW_CLIENTS) if c != "seconds"]
    pd.testing.assert_frame_equal(run.table(NEW_CLIENTS)[columns], expected.table(NEW_CLIENTS))
    (row,) = run.table(NEW_CLIENTS).to_dict("records")
    assert (row["partition_id"], row["round"]) == (3, 3)
    assert 0 < row["teacher_round"] < 3
    assert list(run.clients["loss"]) == list(expected.clients["loss"])
    assert run.summary["new_clients"]["accuracy_mean"] == row["accuracy"]


def test_newcomers_change_nothing_else(small, tmp_path, silos):
    settings = persfl_of(small, tmp_path)
    before, _ = run_with(client_app, settings, tmp_path / "run", node_configs=silos)
    summary, files = before.summary, files_in(tmp_path)
    witness = Witness()
    run = received(settings, tmp_path, silos, witness)
    assert {n for _, _, n in witness.down} == {3}
    written = {f.name for f, content in files.items() if f.read_bytes() != content}
    assert written == {"config.json", "summary.json"}
    added = files_in(tmp_path).keys() - files.keys()
    assert {f.name for f in added if "state" not in f.parts} == {"new_clients.jsonl"}
    assert {f.relative_to(tmp_path / "state").parts[0] for f in added if "state" in f.parts} == {
        "3"
    }
    assert run.config == before.config
    assert run.description["continued"][-1]["changes"] == {"num-clients": [BEFORE, AFTER]}
    apart = ("new_clients", "seconds")
    assert {k: v for k, v in run.summary.items() if k not in apart} == {
        k: v for k, v in summary.items() if k not in apart
    }


def test_a_newcomer_needs_no_other_client(small, tmp_path, silos):
    """Nor as many as a round of the training needs."""
    settings = persfl_of(small, tmp_path, **{"min-replies": BEFORE})
    run_with(client_app, settings, tmp_path / "run", node_configs=silos)
    alone = {0: {**silos[3], "partition-id": 3}}
    more = {"num-clients": AFTER, "resume": True, "connect-timeout": 0.1}
    run, _ = run_with(client_app, settings, tmp_path / "run", nodes=1, node_configs=alone, **more)
    assert run.table(NEW_CLIENTS)["partition_id"].tolist() == [3]


def test_a_newcomer_that_fails_can_join_again(small, tmp_path, silos):
    settings = persfl_of(small, tmp_path, clients=2)
    run_with(client_app, settings, tmp_path / "run", node_configs=silos)
    files = files_in(tmp_path / "run")
    lost = breaking(raising("gone"), 2, PERSONALIZE)
    with pytest.raises(TooFewRepliesError, match=r"newcomers has a model \(2: client 2 .*gone"):
        received(settings, tmp_path, silos, lost, **{"num-clients": 3})
    assert files_in(tmp_path / "run") == files
    half = received(settings, tmp_path, silos, lost).table(NEW_CLIENTS)
    assert half["failure"].notna().tolist() == [True, False]
    witness = Witness()
    rows = received(settings, tmp_path, silos, witness).table(NEW_CLIENTS)
    assert {n for _, _, n in witness.down} == {2}
    assert sorted(rows["partition_id"]) == [2, 3]
    assert rows["failure"].isna().all()
    with pytest.raises(RunDirectoryError, match="holds a finished run"):
        received(settings, tmp_path, silos)


def test_a_run_with_newcomers_can_be_extended_and_receive_more(small, tmp_path, silos):
    settings = persfl_of(small, tmp_path, clients=2, **{"num-server-rounds": 2})
    run_with(client_app, settings, tmp_path / "run", node_configs=silos)
    received(settings, tmp_path, silos, **{"num-clients": 3})
    longer = received(settings, tmp_path, silos, **{"num-clients": 3, "num-server-rounds": 3})
    assert longer.rounds["replies"].tolist() == [2, 2, 3]
    settings |= {"num-server-rounds": 3}
    rows = received(settings, tmp_path, silos).table(NEW_CLIENTS)
    assert rows[["round", "partition_id"]].to_numpy().tolist() == [[2, 2], [3, 3]]
