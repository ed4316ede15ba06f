"""A strategy's state: saved as named arrays and read back by the types of its dataclass."""

import copy
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from helpers import run_with
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.methods import METHODS
from fedkd_flwr.runs import RunDirectoryError
from fedkd_flwr.runs.checkpoint import server_file
from strategies.core.state import OtherStateError, State, named_arrays, read_state, unsaved


@dataclass(frozen=True)
class Part:
    rows: NDArray[np.float64]


@dataclass(frozen=True)
class Whole(State):
    matrix: NDArray[np.float64]
    library: dict[int, dict[str, NDArray[np.float64]]]
    part: Part | None
    later: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))
    rows: tuple[str, ...] = unsaved()


WHOLE = Whole(
    matrix=np.eye(2),
    library={10: {"weights": np.ones(3)}, 9: {"weights": np.zeros(3), "buffers": np.ones(1)}},
    part=Part(np.arange(4.0)),
    rows=("not saved",),
)


def test_a_state_is_saved_under_names_and_read_back():
    arrays = named_arrays(WHOLE)
    assert list(arrays) == [
        "matrix", "library/10/weights", "library/9/weights", "library/9/buffers", "part/rows",
        "later",
    ]  # fmt: skip
    read = read_state(Whole, arrays)
    # Clients are numbers, in ascending order.
    assert list(read.library) == [9, 10]
    assert read.rows == ()
    again = named_arrays(read)
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[name], array)
        assert again[name] is not array


def test_parts_may_be_empty_and_fields_with_a_default_missing():
    arrays = named_arrays(replace(WHOLE, library={}, part=None))
    arrays.pop("later")
    read = read_state(Whole, arrays)
    assert (read.library, read.part, read.later.tolist()) == ({}, None, [0])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"matrix": None}, "it lacks matrix"),
        ({"part/rows": None, "part/columns": np.zeros(1)}, "it lacks part/rows"),
        ({"attention": np.zeros(1)}, "it holds attention, which this version does not know"),
    ],
)
def test_another_state_is_refused(changes, sentence):
    arrays = named_arrays(WHOLE) | changes
    with pytest.raises(OtherStateError, match=sentence):
        read_state(Whole, {name: array for name, array in arrays.items() if array is not None})


def test_a_checkpoint_of_another_version_is_refused_in_one_sentence(small, tmp_path):
    settings = {**small, "strategy": "fd", "models": "mlp", "num-server-rounds": 1}
    run, _ = run_with(client_app, settings, tmp_path / "run")
    arrays = load_file(server_file(run.path))
    arrays["state/goals"] = arrays.pop("state/targets")
    save_file(arrays, server_file(run.path))
    more = {"num-server-rounds": 2, "resume": True}
    with pytest.raises(
        RunDirectoryError, match=r"another version .*it lacks targets.*run it again"
    ):
        run_with(client_app, {**settings, **more}, tmp_path / "run")


@pytest.mark.parametrize(
    "strategy", ["kt-pfl", "fedamp", "fedfomo", "hypcluster", "kt-pfl-params", "scaffold"]
)
def test_aggregation_leaves_the_state_before_it_as_it_was(strategy, small, tmp_path, monkeypatch):
    kind = METHODS[strategy].strategy
    aggregate, changed = kind.aggregate, []

    def watched(self, server_round, replies):
        before = copy.deepcopy(named_arrays(self.state))
        after = aggregate(self, server_round, replies)
        np.testing.assert_equal(named_arrays(self.state), before)
        changed.append(after is not self.state)
        return after

    monkeypatch.setattr(kind, "aggregate", watched)
    settings = {**small, "strategy": strategy, "models": "mlp", "hypcluster.clusters": 2}
    run_with(client_app, settings, tmp_path / "run")
    assert changed == [True, True]
