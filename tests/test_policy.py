"""A node gives only what its operator agreed to, whatever the run config asks for."""

import errno
import json
import logging
import math
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from federation import images_of
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from helpers import Witness, pyproject_config, run_with, write_image_folder
from safetensors.numpy import load_file
from typer.testing import CliRunner

import fedkd_flwr
from fedkd_flwr import files
from fedkd_flwr.bundles.approved import Approval, add, read_approvals, revoke
from fedkd_flwr.bundles.approved_runs import NOISE_SEEDS, OWN_NOISE, approve_run, digest_of_run
from fedkd_flwr.cli import app as cli
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.client_app import build_client
from fedkd_flwr.clients.base import PersonalClient
from fedkd_flwr.clients.gate import with_noise
from fedkd_flwr.clients.messages import Request
from fedkd_flwr.clients.node import read_node
from fedkd_flwr.clients.policy import (
    TRUSTING_POLICY,
    NodeConfigError,
    NodePolicy,
    PolicyError,
    read_policy,
)
from fedkd_flwr.clients.privacy_ledger import DamagedLedgerError, PrivacyLedger
from fedkd_flwr.config import (
    ALL_CONNECTED,
    ConfigError,
    RunConfig,
    named_code,
    read_config,
)
from fedkd_flwr.methods import METHODS
from strategies.base import PersonalizedStrategy
from strategies.core.metrics import MODELS, SPLITS, metrics_of
from strategies.core.privacy import privacy_spent
from strategies.core.replies import TooFewRepliesError
from strategies.core.settings_groups import (
    DEFAULT_ON_NODES,
    NO_EFFECT_ON_RESULTS,
    OnNodes,
    SettingsGroup,
    on_nodes,
)

SILO = {"partition": "iid", "client-split": "60/20/20", "held-out-size": 60, "max-samples": 460}
SILO |= {"num-clients": 4, "models": "mlp"}
DEPLOYED = {"trust-server": False, "epsilon-budget": math.inf}
"""Node config of a client that is treated as a node of a deployment, without need of noise."""


@pytest.fixture
def silo(tmp_path):
    """The node config of a silo with 100 images of its own, with the policy of a deployment."""
    data = write_image_folder(tmp_path / "private", *images_of(SILO, 1))
    own = {"partition-id": 1, "data-path": str(data), "client-split": SILO["client-split"]}
    return {**DEPLOYED, **own}


def client_on(silo, flat, **changes):
    """Build the client of a node as a message of a run does; keys need not be valid."""
    return build_client(Context(1, 1, dict(silo), RecordDict(), {**flat, **changes}))


def refusal(silo, flat, **changes):
    with pytest.raises(PolicyError) as refused:
        _ = client_on(silo, flat, **changes).data
    return str(refused.value)


# ---- The policy itself -----------------------------------------------------------------


def test_a_node_outside_a_simulation_has_the_policy_of_a_deployment(monkeypatch):
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    assert read_policy({"partition-id": 0}) == NodePolicy()
    assert NodePolicy().epsilon_budget == 1
    assert read_policy({"trust-server": True}) == TRUSTING_POLICY
    assert not read_policy({"trust-server": True, "min-noise": 2}).min_noise < 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("allow-methods", "fedvag"),
        ("min-noise", -1),
        ("epsilon-budget", "none"),
        ("epsilon-budget", math.nan),
        ("min-class-count", "many"),
        ("trust-server", "perhaps"),
    ],
)
def test_a_policy_that_cannot_be_read_is_refused(key, value):
    with pytest.raises(NodeConfigError, match=key):
        read_policy({key: value})


# ---- Methods, measures, code -------------------------------------------------------------


def test_only_allowed_methods_are_served(small, silo):
    small |= SILO
    assert client_on(silo, small, strategy="kt-pfl")
    for strategy in ("fedavg", "fedproto"):
        assert "allow-methods" in refusal(silo, small, strategy=strategy)
    silo |= {"allow-methods": "class-means,fedavg"}
    assert client_on(silo, small, strategy="fedavg")
    assert client_on(silo, small, strategy="fedproto")
    assert "allow-methods" in refusal(silo, small, strategy="kt-pfl")
    assert "allow-methods" in refusal(silo, small, strategy="scaffold")


DECIDED = [*RunConfig.fields_by_key().items()]
DECIDED += [
    item
    for method in METHODS.values()
    for item in method.record.settings_type.fields_by_key().items()
]


@pytest.mark.parametrize(("key", "field"), DECIDED, ids=[key for key, _ in DECIDED])
def test_each_setting_says_what_nodes_accept(key, field):
    words = (DEFAULT_ON_NODES, NO_EFFECT_ON_RESULTS)
    assert any(isinstance(mark, OnNodes) or mark in words for mark in field.metadata)
    allowed = on_nodes(field)
    assert allowed is None or allowed.accepts(field.default, {"min-class-count": 0})


@pytest.mark.parametrize(
    ("key", "accepted", "refused"),
    [
        ("batch-size", 10, 9),
        ("learning-rate", 1.0, 1.01),
        ("weight-decay", 0.1, 0.2),
        ("dp-sgd-noise-multiplier", 0.5, 0.49),  # less hides no batch of one
        ("kt-pfl.temperature", 0.1, 0.09),
        ("local-epochs", 100, 101),
        ("measures", "", "classes"),
        ("local-iterations", 0, 1),
        ("label-column", "", "sex"),
    ],
)
def test_a_setting_lies_in_its_range_unless_the_run_is_approved(
    key, accepted, refused, small, silo, tmp_path
):
    small |= SILO
    silo["approved-runs"] = str(tmp_path / "approved")
    assert client_on(silo, small, **{key: accepted})
    assert f"{key} has to be" in refusal(silo, small, **{key: refused})
    approval, _ = approve_run({**small, key: refused}, tmp_path / "approved")
    assert client_on(silo, small, **{key: refused})
    assert client_on(silo, small, **{key: refused, "output-dir": "/elsewhere", "device": "cpu"})
    assert "has to be" in refusal(silo, small, **{key: refused, "seed": 7})
    revoke(approval.digest, tmp_path / "approved")
    assert "has to be" in refusal(silo, small, **{key: refused})


def test_the_digest_of_a_run_does_not_depend_on_the_machine(small, tmp_path, monkeypatch):
    named = {**small, "dataset": "folder:silos", "num-classes": 10, "image-shape": "1,28,28"}
    digests = set()
    for folder in ("operator", "superlink"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        digests.add(digest_of_run(read_config(named).for_flower()))
    assert len(digests) == 1
    assert digest_of_run({**named, "learning-rate": 0.5}) not in digests


@pytest.mark.parametrize(
    "changes",
    [
        {"dataset": "fashion-mnist", "strategy": "fml", "models": ["lenet", "mlp"]},
        {"strategy": "fedkma", "models": "darts", "local-epochs": "3"},
        {"dataset": "folder:silos", "client-column": "writer", "batch-size": 8},
        {"dataset": "unloaded_code:data", "models": "unloaded_code:Net"},
    ],
)
def test_fedkd_run_and_flwr_run_ask_for_the_same(changes):
    """One fills in what `client-split`, `input-scaling` or `supernet-cells` leave open."""
    plain = {key: ",".join(v) if isinstance(v, list) else v for key, v in changes.items()}
    by_flwr = {**pyproject_config(), **plain}
    by_fedkd = read_config({**ALL_CONNECTED, **changes}).for_flower()
    assert digest_of_run(by_fedkd) == digest_of_run(by_flwr)
    assert digest_of_run(by_flwr) != digest_of_run({**by_flwr, "client-split": "50/0/50"})


def test_a_digest_imports_no_method():
    custom = {"strategy": "unloaded_code:mine", "own-settings": "mine.mu = 1"}
    assert digest_of_run(custom) != digest_of_run({**custom, "own-settings": "mine.mu = 2"})


def test_the_range_of_a_batch_follows_the_node(small, silo):
    silo["min-class-count"] = 17
    assert "batch-size has to be from min-class-count to 4096" in refusal(silo, {**small, **SILO})


def test_own_settings_of_a_method_lie_in_their_ranges_or_have_their_defaults(small, silo):
    silo["allow-methods"] = "fedprox,moon,pfedme"
    small |= {**SILO, "strategy": "fedprox", "fedprox.mu": 0.1}
    assert client_on(silo, small)
    assert "fedprox.mu has to be from 0 to 0.1" in refusal(silo, small, **{"fedprox.mu": 5.0})
    small |= {"strategy": "moon", "fedprox.mu": 5.0}  # of another method
    assert client_on(silo, small)
    assert "moon.mu has to be from 0 to 10" in refusal(silo, small, **{"moon.mu": 50.0})


class Silent(SettingsGroup):
    strength: float = 1.0


def test_a_setting_that_says_nothing_of_nodes_has_to_have_its_default():
    assert list(Silent(strength=2.0).outside({})) == [("strength", "its default")]
    assert list(Silent().outside({})) == []


def test_an_approval_says_what_leaves(tmp_path):
    preset = tmp_path / "run.toml"
    preset.write_text('strategy = "kt-pfl"\nbatch-size = 8\nnum-server-rounds = 3\n')
    file = tmp_path / "approved"
    shown = CliRunner().invoke(cli, ["runs", "approve", str(preset), "--list", str(file)])
    text = " ".join(shown.output.split())
    assert "It sends soft predictions, 3 times." in text and "epsilon is infinite" in text
    assert "batch-size is 8; without approval it has to be from min-class-count to 4096." in text
    noise = "noise-multiplier = 2.0\nclip-norm = 1.0\ndelta = 0.9\n"
    told = 'label-column = "a\\nepsilon 0"\n[soft-predictions]\n'
    preset.write_text(preset.read_text() + told + noise)
    shown = CliRunner().invoke(cli, ["runs", "approve", str(preset), "--list", str(file) + "2"])
    assert f"epsilon {privacy_spent(2.0, 3, 1e-5):.3g} at delta 1e-05" in shown.output
    assert "label-column is a epsilon 0; without approval" in shown.output
    digest = read_approvals(file)[0].digest
    assert digest in CliRunner().invoke(cli, ["runs", "list", "--list", str(file)]).output
    CliRunner().invoke(cli, ["runs", "revoke", digest[:9], "--list", str(file)])
    assert read_approvals(file) == []


def test_names_of_data_and_folders_are_no_code():
    config = {"dataset": "hf:squad", "public-dataset": "folder:data", "state-dir": "a:b"}
    assert list(named_code({**config, "device": "cuda:1"})) == []
    assert list(named_code({"partition": "hf:squad"})) == [("partition", "hf:squad")]


def test_code_in_a_list_of_own_settings_is_found():
    own = "my-method.nets = ['mlp', 'a.b:c'], my-method.mu = 0.1"
    assert list(named_code({"own-settings": own})) == [("my-method.nets", "a.b:c")]


# ---- Public data -------------------------------------------------------------------------


def test_a_public_set_for_the_server_alone_lies_nowhere_on_a_node(small, silo, tmp_path):
    small |= {**SILO, "dataset": "folder:silos", "image-shape": "1,28,28", "num-classes": 10}
    small |= {"public-dataset": f"folder:{tmp_path / 'on-the-server'}"}
    del small["feddf.distillation-steps"]
    silo["allow-methods"] = "feddf"
    assert not len(client_on(silo, small, strategy="feddf").data.public_images)
    # Named as public, private images are not read as such by the node either.
    config = {"strategy": "feddf", "public-dataset": f"folder:{silo['data-path']}"}
    assert not len(client_on(silo, small, **config).data.public_images)
    assert "allow-methods" in refusal(silo, small, strategy="local")


# ---- Noise -------------------------------------------------------------------------------

NOISE = {"soft-predictions.noise-multiplier": 2.0, "soft-predictions.clip-norm": 1.0}


@pytest.mark.parametrize("key", NOISE_SEEDS)
def test_a_noise_seed_is_refused_in_approved_runs_too(key, small, silo, tmp_path):
    small |= {**SILO, **NOISE, key: 0}
    add(Approval(digest_of_run(small), "of a test"), tmp_path / "approved")
    assert OWN_NOISE in refusal({**silo, "approved-runs": str(tmp_path / "approved")}, small)
    with pytest.raises(ConfigError, match="No node takes part in this run: a node draws its own"):
        approve_run(small, tmp_path / "approved")
    assert client_on({**silo, "trust-server": True}, small)


def test_a_budget_needs_a_folder_for_its_ledger(small, silo):
    silo |= {"epsilon-budget": 5, "allow-methods": "all"}
    assert client_on(silo, {**small, **SILO}, strategy="local")
    with pytest.raises(NodeConfigError, match="needs state-dir"):
        client_on(silo, {**small, **SILO, **NOISE})


def test_a_node_counts_labels_in_its_budget(small, silo, tmp_path):
    """Its epsilon adds to that of predictions with noise."""
    silo |= {"state-dir": str(tmp_path / "state"), "epsilon-budget": 10}
    flat = {**small, **SILO, "strategy": "privatekt", "soft-predictions.noise-seed": -1}
    flat |= {"privatekt.knowledge-samples": small["public-size"]}
    assert "noise-seed" in refusal(silo, flat, **{"soft-predictions.noise-seed": 7})
    ledger = PrivacyLedger(tmp_path / "state" / "1" / "privacy-ledger.jsonl")
    gaussian = privacy_spent(4.0, 1, 1e-5)
    ledger.record({"noise-multiplier": 4.0}, "0f", 1)
    message = {"names": [], "server-round": 1, "phase": "train"}
    served = 0
    with pytest.raises(PolicyError, match="epsilon-budget of this node is spent"):
        for run in range(9):
            client_on(silo, flat, **{"privatekt.epsilon": 2.5}).fit(
                [], {**message, "run-id": f"{run:x}"}
            )
            served += 1
    assert served == math.floor((10 - gaussian) / 2.5)
    assert ledger.epsilon == pytest.approx(gaussian + 2.5 * served)
    assert ledger.lines() == [{"noise-multiplier": 4.0}] + served * [{"epsilon": 2.5}]
    assert "min-noise" in refusal({**silo, "min-noise": 1.0}, flat)


def noises(ledger):
    return [line["noise-multiplier"] for line in ledger.lines()]


def test_a_node_divides_its_data_as_its_operator_says(small, silo):
    flat = {**small, **SILO}
    own, every = {**silo, "client-split": "50/0/50"}, {**silo, "client-split": "any"}
    sizes = [
        len(client_on(node, flat, **{"client-split": split}).data.train_labels)
        for node, split in ((own, "12/0/88"), (own, "auto"), (own, "50.0/0/50"), (every, "50/0/50"))
    ]
    assert len(set(sizes)) == 1
    assert "is not that of this node" in refusal(own, flat, **{"client-split": "51/0/49"})
    with pytest.raises(
        NodeConfigError, match="in the node's config, client-split = 'half': client-split"
    ):
        client_on({**silo, "client-split": "half"}, flat)


def test_a_misspelled_limit_is_refused(small, silo):
    with pytest.raises(NodeConfigError, match="unknown allow_counts in the node's config"):
        client_on({**silo, "allow_counts": False}, {**small, **SILO})


def test_only_the_owner_reads_a_ledger(tmp_path):
    ledger = PrivacyLedger(tmp_path / "state" / "0" / "ledger.jsonl")
    ledger.record({"noise-multiplier": 2.0}, "0f", 1)
    assert [path.stat().st_mode & 0o077 for path in (ledger.file, ledger.file.parent)] == [0, 0]


def test_a_ledger_that_cannot_be_locked_releases_nothing(tmp_path, monkeypatch):
    """Two runs at once could otherwise spend the rest of a budget twice."""

    def refuse(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    ledger = PrivacyLedger(tmp_path / "ledger.jsonl")
    with pytest.raises(PolicyError, match="needs a state-dir on a file system with locks"):
        ledger.record({"noise-multiplier": 2.0}, "0f", 1)
    assert ledger.lines() == []


def test_a_ledger_survives_a_cut_and_never_counts_less(tmp_path):
    ledger = PrivacyLedger(tmp_path / "ledger.jsonl")
    for server_round in (1, 2, 3):
        ledger.record({"noise-multiplier": 2.0}, "0f", server_round)
    whole = ledger.file.read_bytes()
    second = len(b"".join(whole.splitlines(keepends=True)[:2]))
    for size in range(second, len(whole)):  # the third line may be cut, the others were synced
        ledger.file.write_bytes(whole[:size])
        assert noises(ledger) == [2.0, 2.0]
        ledger.record({"noise-multiplier": 4.0}, "0f", 4)
        assert noises(ledger) == [2.0, 2.0, 4.0]
    ledger.file.write_bytes(b"[" + whole)
    with pytest.raises(DamagedLedgerError, match="is damaged"):
        ledger.record({"noise-multiplier": 2.0}, "0f", 4)


def test_processes_of_a_node_share_a_ledger(tmp_path):
    ledger = PrivacyLedger(tmp_path / "ledger.jsonl")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: ledger.record({"noise-multiplier": 2.0}, "0f", n), range(40)))
    assert noises(ledger) == [2.0] * 40


# ---- Folders -------------------------------------------------------------------------------


def test_a_run_id_leads_to_no_other_folder(small, silo, tmp_path):
    silo["state-dir"] = str(tmp_path / "state")
    node = read_node(silo, read_config({**small, **SILO}).run)
    assert node.state_folder == tmp_path / "state" / "1"
    for run_id in (str(tmp_path / "other"), "../..", "0F", "0f/1", "0f\n", "٣"):
        with pytest.raises(PolicyError, match="id of the run"):
            Request.read({}, {"server-round": 1, "run-id": run_id})


def test_folders_of_a_node_come_from_its_own_config(small, silo, tmp_path):
    run = read_config(
        {**small, **SILO, "models-dir": str(tmp_path / "theirs"), "state-dir": str(tmp_path)}
    ).run
    node = read_node(silo, run)
    assert (node.models_folder, node.state_folder) == (None, None)
    trusting = read_node({**silo, "trust-server": True}, run)
    assert trusting.models_folder == tmp_path / "theirs"


# ---- Errors --------------------------------------------------------------------------------


def reply_of(silo, flat, kind=MessageType.QUERY):
    """Send one message to the app as Flower does; return the error that leaves the node."""
    content = RecordDict({"config": ConfigRecord({"phase": "properties"})})
    message = Message(content, 1, kind)
    context = Context(1, 1, dict(silo), RecordDict(), dict(flat))
    with pytest.raises(Exception) as failed:
        client_app(message, context)
    return failed.value


def test_no_file_name_leaves_a_node_in_an_error(small, silo, logged):
    broken = Path(silo["data-path"]) / "3" / "MRN00377_Schmidt_Karl.png"
    broken.write_bytes(b"no image")
    error = reply_of(silo, {**small, **SILO})
    sent = f"{type(error)}:<'{error}'>"
    assert "MRN00377" not in sent and silo["data-path"] not in sent
    code = re.search(
        r"DataError: its own data or the public set cannot be used \(code ([0-9a-f]{6}) in", sent
    )[1]
    text = "\n".join(logged())
    assert f"code {code}" in text
    assert "MRN00377_Schmidt_Karl.png' is no readable image file" in text
    assert error.__suppress_context__


def test_an_error_of_foreign_code_leaves_as_its_base_class(small, silo, monkeypatch):
    class SchmidtKarlError(ValueError):
        pass

    def raise_it(*_):
        raise SchmidtKarlError("MRN00377")

    monkeypatch.setattr("fedkd_flwr.clients.session.load_client", raise_it)
    assert re.fullmatch(
        r"ValueError: it failed \(code \w{6} in the node's log\)", str(reply_of(silo, small | SILO))
    )


def test_a_trusting_node_explains_itself(small, silo):
    (Path(silo["data-path"]) / "3" / "broken.png").write_bytes(b"no image")
    error = reply_of({**silo, "trust-server": True}, {**small, **SILO})
    assert "broken.png' is no readable image file" in str(error)


def test_a_refusal_reaches_the_server_as_a_fixed_sentence(small, tmp_path):
    nodes = dict.fromkeys(range(4), DEPLOYED)
    with pytest.raises(TooFewRepliesError, match="PolicyError: the method of the run is not in "):
        run_with(client_app, small, tmp_path, node_configs=nodes, strategy="fedavg", models="mlp")


def test_persfl_chooses_on_the_node(small, tmp_path):
    """Its pair and its teacher need no reported count."""
    settings = {"strategy": "persfl", "models": "mlp", "models-dir": str(tmp_path / "models")}
    nodes = {1: {"allow-counts": False}}
    run, _ = run_with(client_app, small, tmp_path / "run", node_configs=nodes, **settings)
    assert list(run.rounds["failures"]) == [0, 0]
    assert set(run.table("pairs")["partition_id"]) == {0, 2, 3}
    weights = [load_file(tmp_path / "models" / f"{n}.safetensors") for n in (1, 2)]
    assert any((weights[0][name] != weights[1][name]).any() for name in weights[0])
    with pytest.raises(TooFewRepliesError, match="the method needs counts"):
        run_with(
            client_app,
            small,
            tmp_path / "other",
            node_configs={n: {"allow-counts": False} for n in range(4)},
            **{**settings, "strategy": "fedfomo"},
        )


def test_only_the_operator_sees_counts_by_default(small, silo, logged):
    client = client_on(silo, {**small, **SILO}, strategy="local")
    message = {"names": [], "server-round": 1, "phase": "train", "evaluate": True}
    _, _, metrics = client.fit([], message)
    assert "correct" not in metrics
    (told,) = (text for text in logged(logging.INFO) if "for its operator alone" in text)
    assert "own-test-correct" in told


def test_counts_can_be_withheld(small, tmp_path):
    withheld = {"allow-counts": False}
    for strategy in ("kt-pfl", "fedavg"):  # counts beside predictions, and in messages of their own
        witness = Witness()
        path = tmp_path / strategy
        changes = {"strategy": strategy, "models": "mlp", "models-dir": str(path / "models")}
        run, _ = run_with(witness, small, path, node_configs={1: withheld}, **changes)
        told = {(phase, n): set(metrics) for (_, phase, n), metrics in witness.metrics.items()}
        mine = set.union(*(metrics for (_, n), metrics in told.items() if n == 1))
        others = set.union(*(told[phase, n] for phase, n in told if n == 0))
        counts = {metric.name for metric in metrics_of(MODELS)}
        assert not counts & mine and {"own-test-correct", "own-test-total"} <= others
        assert list(run.rounds["failures"]) == [0, 0]
        accuracies = run.clients.groupby("partition_id")["accuracy"].count()
        assert list(accuracies) == [2, 0, 2, 2]
        # The silo itself knows.
        card = json.loads((path / "models" / "1.json").read_text())
        assert card["metrics"]["total"] > 0


# ---- Samples -------------------------------------------------------------------------------


def test_a_node_with_its_own_data_has_a_split_for_use(small, silo):
    small |= SILO
    del silo["client-split"]
    silo["min-class-count"] = 1
    sizes = [
        (len(data.train_labels), len(data.validation_labels), len(data.test_labels))
        for data in (
            client_on(silo, small, **{"client-split": "12/0/88"}).data,
            client_on({**silo, "client-split": "any"}, small, **{"client-split": "50/0/50"}).data,
            client_on({**silo, "trust-server": True}, small, **{"client-split": "12/0/88"}).data,
        )
    ]
    # The split by content meets the percentages on average.
    expected = [(70, 10, 20), (50, 0, 50), (12, 0, 88)]
    np.testing.assert_allclose(sizes, expected, atol=12)
    assert [size[1] > 0 for size in sizes] == [True, False, False]


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ([30, 9, 0, 12], [1, 0, 0, 0]),  # 9 samples are left for two classes: hide 12 too
        ([30, 9, 4, 12], [1, 0, 0, 1]),
        ([30, 20, 0, 10], [1, 1, 0, 1]),
        ([3, 2, 0, 1], [0, 0, 0, 0]),
    ],
)
def test_small_classes_are_reported_as_absent(counts, shown):
    assert NodePolicy().reported(np.array(counts)).tolist() == [bool(one) for one in shown]
    assert TRUSTING_POLICY.reported(np.array(counts)).tolist() == [count > 0 for count in counts]


def test_small_classes_do_not_leave_as_class_means(small, silo):
    """With one training sample of a class, its mean was the feature vector of one patient."""
    small |= {**SILO, "strategy": "fedproto", "local-epochs": 1, "client-split": "80/0/20"}
    silo |= {"allow-methods": "class-means,fedkma", "client-split": "80/0/20"}
    message = {"names": [], "server-round": 1, "phase": "train"}
    true = client_on(silo, small).data.class_counts.numpy()
    assert ((true > 0) & (true < 10)).any() and (true >= 10).any()
    shown = NodePolicy().reported(true)
    for strategy in ("fedproto", "fedtgp", "fedgh", "fd"):
        client = client_on(silo, small, strategy=strategy)
        arrays, _, metrics = client.fit([], message)
        sent = dict(zip(metrics["names"], arrays, strict=True))
        assert (sent["class-counts"] == np.where(shown, true, 0)).all(), strategy
        assert not sent["class-means"][~shown].any()
        assert sent["class-means"][shown].any(axis=1).all()


def test_counts_by_class_do_not_tell_small_training_classes(small, silo, tmp_path):
    """A server that asks for few training and many test samples learned of a single one."""
    small |= {**SILO, "client-split": "20/0/80", "measures": "classes"}
    silo |= {"min-class-count": 4, "allow-counts": True, "client-split": "20/0/80"}
    silo["approved-runs"] = str(tmp_path / "approved")
    approve_run({**small, "strategy": "local"}, tmp_path / "approved")
    client = client_on(silo, small, strategy="local")
    trained = client.data.class_counts.numpy()
    tested = np.bincount(client.data.test_labels, minlength=10)
    in_training, in_test = map(client.session.policy.reported, (trained, tested))
    assert ((trained > 0) & ~in_training & in_test).any()
    message = {"names": [], "server-round": 1, "phase": "train", "evaluate": True}
    _, _, metrics = client.fit([], message)
    assert metrics["held-total"] == tested[in_training & in_test].sum()


def test_a_method_that_does_not_say_what_it_exchanges_needs_noise(small, silo, tmp_path):
    """A custom method without `exchanged` once counted as one that exchanges nothing."""
    fedkd_flwr.register("silent", PersonalizedStrategy, PersonalClient)
    silo |= {"approved-runs": str(tmp_path / "approved"), "min-noise": 1.0}
    approve_run({**small, **SILO, "strategy": "silent"}, tmp_path / "approved")
    assert "min-noise" in refusal(silo, {**small, **SILO}, strategy="silent")


@pytest.mark.parametrize(
    ("strategy", "models", "told"),
    [
        ("fedkma", "darts", lambda client: client.label_distribution()),
        ("fedgen", "mlp", lambda client: client.reported_counts()),
    ],
)
def test_shares_of_classes_do_not_tell_small_ones(strategy, models, told, small, silo):
    small |= {**SILO, "strategy": strategy, "models": models, "client-split": "80/0/20"}
    silo |= {"allow-methods": strategy, "client-split": "80/0/20"}
    client = client_on(silo, small)
    true = client.data.class_counts.numpy()
    shown = NodePolicy().reported(true)
    assert ((true > 0) & ~shown).any() and shown.any()
    expected = np.where(shown, true, 0)
    found = np.array(told(client))
    np.testing.assert_allclose(found / found.sum(), expected / expected.sum(), rtol=1e-6)
    assert strategy == "fedkma" or found.tolist() == expected.tolist()
    silo["min-class-count"] = 18
    hidden = np.array(told(client_on(silo, small, **{"batch-size": 18})))
    np.testing.assert_allclose(hidden / hidden.sum(), np.full(10, 0.1), rtol=1e-6)


# ---- Counts with noise -----------------------------------------------------------------------


def test_noise_moves_whole_numbers_within_their_totals():
    exact = {"own-test-correct": 4, "trained-test-correct": 9, "own-validation-correct": 1}
    totals = {"own-test-total": 10, "trained-test-total": 10, "own-validation-total": 3}
    noise = np.array([-1.3, 0.2, 9.0])  # in the order of the models, then of the splits
    metrics, counts = with_noise({**exact, **totals, "num-examples": 7}, 2.0, lambda shape: noise)
    moved = {"own-test-correct": 1, "own-validation-correct": 1, "trained-test-correct": 10}
    assert metrics == {**moved, **totals, "num-examples": 7}
    assert counts == 2  # each test sample is counted for two models


def test_noised_counts_spend_their_budget_and_the_operator_sees_them_exactly(
    small, silo, logged, tmp_path
):
    silo |= {"allow-counts": "noised", "count-noise": 4.0, "count-budget": 1.5}
    silo["state-dir"] = str(tmp_path / "state")
    client = client_on(silo, {**small, **SILO}, strategy="local")
    assert client.get_properties({})["test-size"] == client.data.sizes[2]
    message = {"names": [], "server-round": 1, "phase": "train", "evaluate": True}
    sent = [client.fit([], message)[2] for _ in range(2)]
    splits = [f"own-{split}-{number}" for split in SPLITS for number in ("correct", "total")]
    assert {name for metrics in sent for name in metrics if name.startswith("own-")} == {*splits}
    told = [text for text in logged(logging.INFO) if "for its operator alone" in text]
    assert len(told) == 2 and all("own-test-loss" in text for text in told)
    ledger = client.session.node.ledger
    assert ledger.lines() == 2 * [{"count-noise": 4.0}]
    assert ledger.epsilon_of_counts == pytest.approx(privacy_spent(4.0, 2, 1e-5))
    assert ledger.epsilon == ledger.epsilon_of_training == 0
    with pytest.raises(PolicyError, match="count-budget of this node is spent"):
        for _ in range(9):
            client.fit([], message)
    assert 1 < ledger.epsilon_of_counts <= 1.5


@pytest.mark.parametrize(
    "choice", [{"safeguard": "choose"}, {"strategy": "persfl", "models": "mlp"}]
)
def test_noised_counts_are_of_no_model_that_validation_samples_choose(
    choice, small, silo, tmp_path
):
    silo |= {"allow-counts": "noised", "state-dir": str(tmp_path), "allow-methods": "all"}
    assert "allow-counts=noised does not cover" in refusal(silo, {**small, **SILO}, **choice)


def test_a_validation_sample_that_is_a_test_sample_too_is_counted_twice(small, silo, tmp_path):
    silo |= {"allow-counts": "noised", "count-noise": 4.0, "state-dir": str(tmp_path)}
    evaluated = {**small, **SILO, "evaluated-split": "validation"}
    client = client_on(silo, evaluated, strategy="local")
    client.evaluate([], {"names": [], "server-round": 1})
    assert client.session.node.ledger.lines() == [{"count-noise": 4.0 / 2**0.5}]


@pytest.mark.parametrize("change", [{"state-dir": ""}, {"trust-server": True}])
def test_noised_counts_need_a_ledger(change, small, silo):
    with pytest.raises(NodeConfigError, match="allow-counts=noised needs state-dir"):
        client_on({**silo, "allow-counts": "noised", **change}, {**small, **SILO}, strategy="local")


def test_a_run_has_accuracies_from_noised_counts(small, tmp_path):
    nodes = {
        n: {**DEPLOYED, "min-class-count": 0, "allow-counts": "noised", "state-dir": str(tmp_path)}
        for n in range(4)
    }
    run, _ = run_with(client_app, small, tmp_path / "run", node_configs=nodes)
    assert list(run.rounds["failures"]) == [0, 0]
    assert run.clients["accuracy"].between(0, 1).all() and run.rounds["loss_mean"].isna().all()
    with pytest.raises(TooFewRepliesError, match="the method needs counts"):
        nodes = {n: {**node, "allow-methods": "all"} for n, node in nodes.items()}
        changes = {"node_configs": nodes, "strategy": "fedfomo", "models": "mlp"}
        run_with(client_app, small, tmp_path / "other", **changes)
