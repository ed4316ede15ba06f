"""A silo that comes later: a run is continued with more clients than it was started with."""

import numpy as np
import pytest
from helpers import Witness, most_of_them_slow, run_with, write_image_folder

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.data.sources import load_images
from fedkd_flwr.runs import load_run, read_checkpoint
from fedkd_flwr.runs.reading import in_one_shape
from fedkd_flwr.server_app import check_run
from strategies.core.growing import padded, with_equal_weights, with_means
from strategies.core.replies import TooFewRepliesError
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


def test_the_model_of_a_silo_that_joins_is_mixed_by_one_nth(small, tmp_path, silos):
    settings = settings_of(small, tmp_path, "kt-pfl-params")
    settings["kt-pfl-params.coefficient-learning-rate"] = 0.0
    witness = Witness()
    run_with(witness, settings, tmp_path / "run", node_configs=silos)
    grown(witness, settings, tmp_path, silos)
    sent = np.stack([witness.up[1, "train", n]["weights"] for n in range(BEFORE)])
    received = witness.down[2, "train", 3]["weights"]
    np.testing.assert_allclose(received, sent.mean(axis=0), atol=1e-6)


def test_the_supernet_of_a_silo_that_joins_is_the_mean_of_the_others(small, tmp_path, silos):
    settings = settings_of(small, tmp_path, "fedkma")
    witness = Witness()
    run_with(witness, settings, tmp_path / "run", node_configs=silos)
    grown(witness, settings, tmp_path, silos)
    for kind in ("weights", "alphas"):
        mixed = np.stack([witness.down[2, "train", n][kind] for n in range(BEFORE)])
        received = witness.down[2, "train", 3][kind]
        np.testing.assert_allclose(received, mixed.mean(axis=0), atol=1e-6)


def test_a_run_with_noise_goes_on_as_it_was_after_an_attempt_with_more_silos(
    small, tmp_path, silos
):
    """What the silo that was to join has released in the attempt is still counted."""

    def fails(message, context):
        if message.metadata.message_type == "train":
            raise RuntimeError("gone")
        return client_app(message, context)

    noise = {"kt-pfl.noise-multiplier": 1.0, "kt-pfl.clip-norm": 1.0}
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


def test_matrices_of_rounds_with_fewer_clients_are_filled_up():
    filled = in_one_shape([np.ones((2, 2)), np.zeros((3, 3))])
    assert np.isnan(filled[0, 2]).all()
    assert filled[0, :2, :2].sum() == 4
    assert in_one_shape([np.array([5]), np.array([6, 7])]).tolist() == [[5, -1], [6, 7]]


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
