"""The declared states of strategies and clients are saved, and read back by their types."""

import copy
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from helpers import client_of, run_with
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from torch import Tensor

import fedkd_flwr
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.clients.base import PersonalClient
from fedkd_flwr.clients.messages import Request
from fedkd_flwr.memory import Memory, StoredState, own_context
from fedkd_flwr.memory import State as ClientState
from fedkd_flwr.methods import METHODS
from fedkd_flwr.runs import RunDirectoryError
from fedkd_flwr.runs.checkpoint import server_file
from strategies.base import PersonalizedStrategy
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


# ---- The state of a client -----------------------------------------------------------


@dataclass(kw_only=True)
class Kept(ClientState):
    anchor: Tensor
    weights: dict[str, Tensor] = field(default_factory=dict)
    share_of_all: float = 0.5
    steps: int = 0
    seen: dict[str, float] = field(default_factory=dict)
    shift: Tensor | None = None
    of_message: tuple[int, ...] = unsaved()


def begin():
    return Kept(anchor=torch.zeros(2))


def stored(memory):
    return StoredState(Kept, memory, "cpu", begin)


def test_a_state_is_read_as_it_was_saved():
    memory = Memory()
    before = stored(memory)
    assert before.value.anchor.tolist() == [0, 0] and not before.value.weights
    state = before.value
    state.anchor, state.weights = torch.ones(2), {"w": torch.zeros(2, 3), "n": torch.tensor(4)}
    state.share_of_all, state.steps, state.seen = 0.25, 3, {"loss": 1.5}
    state.shift, state.of_message = torch.tensor([2.0]), (1, 2)
    before.save(memory)
    after = stored(memory).value
    assert torch.equal(after.anchor, torch.ones(2)) and torch.equal(after.shift, state.shift)
    assert {name: tensor.tolist() for name, tensor in after.weights.items()} == {
        "w": [[0.0] * 3] * 2,
        "n": 4,
    }
    assert (after.share_of_all, after.steps, after.seen) == (0.25, 3, {"loss": 1.5})
    assert type(after.steps) is int and after.of_message == ()


def test_a_field_that_is_emptied_is_forgotten():
    memory = Memory()
    first = stored(memory)
    first.value.shift, first.value.seen = torch.ones(1), {"loss": 1.0}
    first.save(memory)
    second = stored(memory)
    second.value.shift, second.value.seen = None, {}
    second.save(memory)
    assert stored(memory).value.shift is None and stored(memory).value.seen == {}


@pytest.mark.parametrize("in_place", [False, True])
def test_fields_that_have_not_changed_are_not_written_again(in_place):
    memory, context = Memory(), Context(1, 1, {}, RecordDict(), {})
    first = stored(memory)
    first.value.weights = {"w": torch.zeros(3)}
    first.save(memory)
    own_context(context).keep(memory)
    later = own_context(context).memory
    again = stored(later)
    if in_place:
        again.value.anchor += 1
    else:
        again.value.anchor = again.value.anchor + 1
    again.save(later)
    assert later.changed == {"anchor"}
    # What the context held before a message that may fail is not touched.
    assert own_context(context).memory.load("anchor")["anchor"].tolist() == [0, 0]
    assert later.load("anchor")["anchor"].tolist() == [1, 1]


def test_what_no_memory_can_hold_is_refused():
    state = stored(Memory())
    with pytest.raises(AttributeError, match="`anchors` is no field of Kept; declare it"):
        state.value.anchors = torch.ones(2)

    @dataclass(kw_only=True)
    class Taken(ClientState):
        model: float = 0.0

    with pytest.raises(TypeError, match=r"Taken: every client keeps model; rename the field"):
        StoredState(Taken, Memory(), "cpu", Taken)
    state.value.seen = ["loss"]
    with pytest.raises(TypeError, match=r"Kept.seen is of type list; a client's state holds"):
        state.save(Memory())


def test_momentum_of_parts_that_are_trained_apart_is_kept(small):
    client = client_of({**small, "strategy": "local", "models": "mlp", "momentum": 0.9})
    names = [name for name, _ in client.model.named_parameters()]
    *body, weight, bias = client.model.parameters()
    for parameters in ([weight, bias], body):
        client.train_locally(1, replaced=(), parameters=parameters)
    kept = client.session.memory.load("optimizer")
    assert sorted(kept) == sorted(f"model/{name}/momentum_buffer" for name in names)


class Forgetful(PersonalClient):
    """Means to keep an anchor, and does not declare it."""

    def train(self, received, server_round, phase):
        self.anchor = [parameter.detach().clone() for parameter in self.model.parameters()]
        return super().train(received, server_round, phase)


forgetful = fedkd_flwr.register("forgetful", strategy=PersonalizedStrategy, client=Forgetful)


def test_an_undeclared_attribute_stops_the_run_at_once(small, tmp_path):
    sentence = "`anchor` would not survive this message; declare it in the state, or use a local"
    settings = {**small, "strategy": "tests.test_state:forgetful", "models": "mlp"}
    with pytest.raises(Exception, match=sentence):
        fedkd_flwr.run(settings, output_dir=tmp_path / "run")


def test_an_attribute_may_be_set_before_a_message(small):
    client = client_of(small, strategy="local", models="mlp")
    client.extra = 1
    client.session.request = Request(server_round=2)
    with pytest.raises(AttributeError, match="`extra` would not survive this message"):
        client.extra = 2
    client.model = client.session.new_model()
