"""Members of a run: a partition stays with its key, and a resumed run goes on with some."""

import json
import logging
import shutil

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Image
from federation import images_of
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from helpers import image_rows, run_with, write_image_folder, write_parquet

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.data.folders import class_names, hash_of_names
from fedkd_flwr.engines import InProcessGrid
from fedkd_flwr.grids import FastPollingGrid, SimulationGrid
from fedkd_flwr.memory import round_of
from strategies.core.membership import Membership
from strategies.core.plan import RunPlan
from strategies.core.replies import TooFewRepliesError, valid_name


class FakeGrid:
    """Nodes by id, each with partition-id, public key, and maybe name and hash of the classes."""

    def __init__(self, **nodes):
        self.nodes = {int(node.removeprefix("n")): answer for node, answer in nodes.items()}

    def get_node_ids(self):
        return list(self.nodes)

    def get_nodes(self):
        keys = {node: answer[1] for node, answer in self.nodes.items()}
        return [NodeInfo(node_id=node, public_key=key.encode()) for node, key in keys.items()]

    def send_and_receive(self, messages, *, timeout=None):
        return [self.answer(message) for message in messages]

    def answer(self, message):
        partition_id, _, *further = self.nodes[message.metadata.dst_node_id]
        sizes = {"num-examples": 10, "test-size": 5, "validation-size": 0}
        info = {"partition-id": partition_id, "model": "mlp"}
        info |= dict(zip(("name", "classes-hash"), further, strict=False))
        content = RecordDict({"metrics": MetricRecord(sizes), "info": ConfigRecord(info)})
        reply = Message(content, reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
        return reply


def membership(**changes):
    plan = {"num_clients": 3, "num_classes": 10, "connect_timeout": 0.01, **changes}
    return Membership(RunPlan(**plan), needs_public_data=False)


def nodes_of(members):
    return {n: client.node_id for n, client in sorted(members.clients.items())}


ALL = {"n11": (0, "a"), "n12": (1, "b"), "n13": (2, "c")}
RESTARTING = {"n11": (0, "a"), "n13": (2, "c")}


# ---- A partition belongs to a key ------------------------------------------------------


def test_a_partition_is_not_taken_over_while_its_node_restarts(caplog):
    members = membership()
    members.meet(FakeGrid(**ALL), 1)
    members.meet(FakeGrid(**RESTARTING, n99=(1, "thief")), 2)
    assert nodes_of(members) == {0: 11, 1: 12, 2: 13}
    assert "partition 1 belongs to the node with another key" in caplog.text
    assert "bind-partitions = false" in caplog.text
    # The owner returns, under another node id of the same key, and is not shut out.
    members.meet(FakeGrid(**RESTARTING, n99=(1, "thief"), n15=(1, "b")), 3)
    assert nodes_of(members) == {0: 11, 1: 15, 2: 13}


def test_the_owner_of_a_partition_is_kept_in_the_state():
    members = membership()
    members.meet(FakeGrid(**ALL), 1)
    resumed = membership()
    resumed.resume(4, members.owners.state())
    resumed.meet(FakeGrid(n21=(0, "a"), n22=(1, "thief"), n23=(2, "c")), 5)
    assert nodes_of(resumed) == {0: 21, 2: 23}


def test_a_continued_run_still_leaves_out_the_node_that_was_left_out():
    """It may be the only one that is connected, and its classes were then those of the run."""
    nodes = {"n11": (0, "a", "a", "same"), "n12": (1, "b", "b", "same")}
    odd = {"n13": (2, "c", "c", "other")}
    members = membership(min_replies=1)
    members.meet(FakeGrid(**nodes, **odd), 1)
    assert nodes_of(members) == {0: 11, 1: 12}
    resumed = membership(min_replies=1)
    resumed.resume(1, members.saved_arrays())
    with pytest.raises(TooFewRepliesError):
        resumed.meet(FakeGrid(**odd), 2)
    resumed.meet(FakeGrid(**nodes, **odd), 3)
    assert nodes_of(resumed) == {0: 11, 1: 12}


def test_a_node_that_has_the_right_classes_after_a_restart_takes_part():
    """With a registered key it has the same node id as before."""
    nodes = {"n11": (0, "a", "a", "same"), "n12": (1, "b", "b", "same")}
    members = membership()
    members.meet(FakeGrid(**nodes, n13=(2, "c", "c", "other")), 1)
    assert nodes_of(members) == {0: 11, 1: 12}
    members.meet(FakeGrid(**nodes, n13=(2, "c", "c", "same")), 2)
    assert nodes_of(members) == {0: 11, 1: 12, 2: 13}


def test_without_binding_a_node_with_a_new_key_may_return():
    members = membership(bind_partitions=False)
    members.meet(FakeGrid(**ALL), 1)
    assert not members.owners.state()
    members.meet(FakeGrid(**RESTARTING, n99=(1, "new")), 2)
    assert nodes_of(members)[1] == 99


def test_keys_of_a_federation_count_and_those_of_a_simulation_do_not():
    """A simulation draws new keys each time, and a resumed one would exclude everybody."""
    grid = FakeGrid(**ALL)
    assert [node.public_key for node in FastPollingGrid(grid).get_nodes()] == [b"a", b"b", b"c"]
    assert [node.public_key for node in SimulationGrid(grid).get_nodes()] == [b"", b"", b""]


# ---- A resumed run goes on with those who are there --------------------------------------


def test_a_new_run_waits_for_all_and_a_resumed_run_goes_on_with_some(caplog):
    caplog.set_level(logging.INFO)
    four = FakeGrid(**ALL)
    with pytest.raises(TooFewRepliesError, match="needs 5 clients and 3 are connected"):
        membership(num_clients=5).meet(four, 1)
    resumed = membership(num_clients=5)
    resumed.resume(2, {})
    resumed.meet(four, 3)
    assert list(resumed.clients) == [0, 1, 2]
    assert "Continuing with 3 of 5 clients" in caplog.text
    resumed.meet(FakeGrid(**ALL, n14=(3, "d")), 4)
    assert list(resumed.clients) == [0, 1, 2, 3]
    assert "client 3 joined in round 4" in caplog.text


def test_a_resumed_run_needs_min_replies():
    resumed = membership(num_clients=5, min_replies=4)
    resumed.resume(2, {})
    with pytest.raises(TooFewRepliesError, match=r"at least 4 clients \(min-replies\), and 3 are"):
        resumed.meet(FakeGrid(**ALL), 3)


class Partial(InProcessGrid):
    """One of the nodes is not connected before a round is over."""

    missing = 1003

    def get_node_ids(self):
        return [n for n in super().get_node_ids() if n != self.missing]

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = super().send_and_receive(messages, timeout=timeout)
        if any(message.metadata.message_type == MessageType.TRAIN for message in messages):
            self.missing = 0
        return replies


@pytest.mark.parametrize("strategy", ["kt-pfl", "fedavg", "perfed-ckt"])
def test_a_run_is_resumed_without_one_silo_which_joins_later(small, tmp_path, strategy):
    settings = {
        **small, "strategy": strategy, "models": "mlp", "state-dir": str(tmp_path / "state"),
        "connect-timeout": 0.1, "evaluate-every": 1,
    }  # fmt: skip
    run_with(client_app, {**settings, "num-server-rounds": 1}, tmp_path / "run")
    more = {**settings, "resume": True, "num-server-rounds": 4}
    run, _ = run_with(client_app, more, tmp_path / "run", Partial)
    replies = run.rounds["replies"].tolist()
    assert replies[:2] == [4, 3]
    assert replies[-1] == 4
    assert run.rounds["absent"].tolist() == [4 - replied for replied in replies]
    assert run.rounds["failures"].tolist() == [0, 0, 0, 0]


class Leaving(InProcessGrid):
    """One of the nodes is connected in the first round alone."""

    is_new, has_trained = True, False

    def get_node_ids(self):
        is_there = self.is_new and not self.has_trained
        return [n for n in super().get_node_ids() if n != 1003 or is_there]

    def send_and_receive(self, messages, *, timeout=None):
        replies = list(super().send_and_receive(messages, timeout=timeout))
        self.has_trained |= any(r.metadata.message_type == MessageType.TRAIN for r in replies)
        return replies


class StillAway(Leaving):
    """The same node is not there when the run is resumed."""

    is_new = False


@pytest.mark.parametrize("strategy", ["kt-pfl", "kt-pfl-params", "scaffold", "pfedgraph"])
def test_the_size_of_a_silo_counts_before_it_returns_to_a_resumed_run(small, tmp_path, strategy):
    settings = {
        **small, "strategy": strategy, "models": "mlp", "state-dir": str(tmp_path / "state"),
        "partition": "dirichlet", "connect-timeout": 0.1, "momentum": 0.0,
    }  # fmt: skip
    more = {"num-server-rounds": 3}
    whole, _ = run_with(client_app, {**settings, **more}, tmp_path / "whole", Leaving)
    run_with(client_app, {**settings, "num-server-rounds": 1}, tmp_path / "run", Leaving)
    more |= {"resume": True}
    resumed, _ = run_with(client_app, {**settings, **more}, tmp_path / "run", StillAway)
    assert resumed.rounds["absent"].tolist() == whole.rounds["absent"].tolist() == [1, 1, 1]
    assert resumed.rounds["loss_mean"].tolist() == whole.rounds["loss_mean"].tolist()
    np.testing.assert_equal(resumed.matrices, whole.matrices)


# ---- Names of silos ----------------------------------------------------------------------


def test_a_client_is_called_by_the_name_of_its_silo():
    members = membership()
    nodes = {"n11": (0, "a", "Charité Berlin"), "n12": (1, "b"), "n13": (2, "c", "uke")}
    members.meet(FakeGrid(**nodes), 1)
    labels = [members.clients[n].label for n in range(3)]
    assert labels == ["client 0 (Charité Berlin)", "client 1", "client 2 (uke)"]


@pytest.mark.parametrize(
    ("names", "are_valid"),
    [
        (["uke", "St. Marien 2", "Klinikum-Süd_1", "a" * 40, "東京"], True),
        (["", "a" * 41, "../../etc", "a/b", "a\\b", "two\nlines", "\x1b[31mred", " left", "right ",
          "\u202eoverride", 7, None], False),
    ],
)  # fmt: skip
def test_what_is_a_name(names, are_valid):
    assert {valid_name(name) for name in names} == {are_valid}


def test_an_invalid_or_second_name_is_left_out_and_its_silo_is_not(caplog):
    members = membership()
    nodes = {"n11": (0, "a", "uke"), "n12": (1, "b", "UKE"), "n13": (2, "c", "../x")}
    members.meet(FakeGrid(**nodes), 1)
    assert [members.clients[n].label for n in range(3)] == [
        "client 0 (uke)",
        "client 1",
        "client 2",
    ]
    assert "client 1 gives the name 'UKE'" in caplog.text
    assert "client 2 gives the name '../x'" in caplog.text


def test_a_silo_that_joins_later_recalls_no_round_that_the_run_has_dropped(
    small, tmp_path, monkeypatch
):
    """Round 3 is repeated without it, so its memory of round 3 is of the rounds before that."""
    state, run_folder, before = tmp_path / "state", tmp_path / "run", tmp_path / "before"
    settings = {**small, "strategy": "local", "models": "mlp", "connect-timeout": 0.1}
    settings |= {"num-server-rounds": 3, "state-dir": str(state)}
    # The run stops after its last round, and then loses its newest checkpoint.
    monkeypatch.setattr("fedkd_flwr.runs.directory.keep_last_checkpoint", lambda _: None)
    run_with(client_app, settings, run_folder)
    for file in ("summary.json", "checkpoint/server.safetensors"):
        (run_folder / file).unlink()
    for folder in (state, run_folder):
        shutil.copytree(folder, before / folder.name)

    def row_of_round_4():
        more = {**settings, "resume": True, "num-server-rounds": 4}
        rows = run_with(client_app, more, run_folder, Partial)[0].clients
        return rows[(rows["round"] == 4) & (rows["partition_id"] == 3)][["train_loss", "loss"]]

    with_memory_of_round_3 = row_of_round_4()
    for folder in (state, run_folder):
        shutil.rmtree(folder)
        shutil.copytree(before / folder.name, folder)
    for file in state.glob("*/*/round-*"):
        if round_of(file) > 2:
            file.unlink()
    assert with_memory_of_round_3.equals(row_of_round_4())


# ---- Names of classes ----------------------------------------------------------------


SILOS = {"num-clients": 3, "max-samples": 360, "held-out-size": 60, "partition": "iid"}
NAMES = ["Ankle boot", "Bag", "Coat", "Dress", "Pullover", "Sandal", "Shirt", "Sneaker", "T-shirt"]
NAMES += ["Trouser"]


@pytest.fixture
def silos(tmp_path):
    """The folders of three silos; in the last one `ankle-boot` comes after all others."""
    others = ["ankle-boot" if name == "Ankle boot" else name for name in NAMES]
    folders = []
    for n, names in enumerate((NAMES, NAMES, others)):
        images, labels = images_of(SILOS, n)
        folder = tmp_path / f"silo-{n}"
        folders.append(write_image_folder(folder, images, [names[label] for label in labels]))
    return folders


def test_names_are_in_the_order_of_their_numbers(silos, tmp_path):
    assert class_names(str(silos[0]), 10) == NAMES
    assert class_names(str(silos[2]), 10)[0] == "Bag"
    assert class_names("", 10) == class_names(str(tmp_path / "none"), 10) == []
    assert class_names(str(silos[0]), 11) == []
    numbered = write_image_folder(tmp_path / "numbered", *images_of(SILOS, 0))
    assert class_names(str(numbered), 10) == []
    assert hash_of_names([]) == ""
    assert hash_of_names(["a", "bc"]) != hash_of_names(["ab", "c"])


def test_a_silo_with_other_names_is_left_out(silos, small, logged, tmp_path):
    nodes = {n: {"data-path": str(folder)} for n, folder in enumerate(silos)}
    models = {"models": "mlp", "models-dir": str(tmp_path / "models")}
    settings = {**small, **SILOS, **models, "num-server-rounds": 1}
    run, _ = run_with(client_app, settings, tmp_path / "run", node_configs=nodes)
    assert set(run.clients["partition_id"]) == {0, 1}
    assert json.loads((tmp_path / "models" / "0.json").read_text())["class-names"] == NAMES
    assert any("client 2 numbers its classes differently" in line for line in logged())


def named_table(path, n, names):
    """Write a silo's images as `datasets` does, with the names of the labels in the schema."""
    images, labels = images_of(SILOS, n)
    features = Features({"label": ClassLabel(names=names), "image": Image()})
    rows = {"label": [int(label) for label in labels], "image": image_rows(images)}
    Dataset.from_dict(rows, features=features).to_parquet(path)
    return path


def test_names_of_labels_come_from_the_metadata_of_a_table(tmp_path):
    named = named_table(tmp_path / "named.parquet", 0, NAMES)
    assert class_names(str(named), 10) == class_names(str(named), 10, "label") == NAMES
    assert class_names(str(named), 11) == []
    Dataset.from_parquet(str(named), cache_dir=tmp_path / "cache").save_to_disk(tmp_path / "arrow")
    assert class_names(str(tmp_path / "arrow"), 10) == NAMES
    digits = list("0123456789")
    assert class_names(str(named_table(tmp_path / "digits.parquet", 0, digits)), 10) == []
    turned = class_names(str(named_table(tmp_path / "turned.parquet", 0, digits[::-1])), 10)
    assert turned == digits[::-1]
    plain = write_parquet(tmp_path / "plain.parquet", *images_of(SILOS, 0))
    assert class_names(str(plain), 10) == []
