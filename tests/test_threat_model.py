"""The attempts of docs/explanation/privacy.md: private data by run config alone.

The attacker knows the page, the app and every path of the node, and writes any run config and any
message. The node has images of its own and the policy of a deployment.
"""

import math
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from federation import images_of
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from helpers import arrays_of, write_image_folder
from PIL import Image
from sklearn.ensemble import RandomForestClassifier
from torch import nn

from fedkd_flwr.bundles.approved import Approval, add
from fedkd_flwr.bundles.approved_runs import digest_of_run
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.client_app import build_client
from fedkd_flwr.clients import session
from fedkd_flwr.clients.audit import AUDIT
from fedkd_flwr.clients.policy import PolicyError
from fedkd_flwr.clients.privacy_ledger import PrivacyLedger, epsilon_of_trainings
from fedkd_flwr.data import sources
from fedkd_flwr.data.registry import forget_data
from fedkd_flwr.models.vectors import model_vectors
from fedkd_flwr.training.dp_sgd import PrivateGradients
from fedkd_flwr.training.loop import epoch_batches
from fedkd_flwr.training.losses import cross_entropy
from strategies.core import privacy
from strategies.core.privacy import noised_predictions, privacy_spent

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "privacy.md"
SILOS = {"num-clients": 2, "max-samples": 300, "held-out-size": 60, "partition": "iid"}
CONFIG = {
    **SILOS,
    "strategy": "kt-pfl",
    "dataset": "folder:silos",
    "image-shape": "1,28,28",
    "num-classes": 10,
    "public-size": 20,
    "client-split": "60/20/20",
    "models": "mlp",
    "local-epochs": 1,
    "batch-size": 10,
    "device": "cpu",
}
SECRET = "MRN00377_Schmidt_Karl"
NOISE = {"soft-predictions.noise-multiplier": 2.0, "soft-predictions.clip-norm": 1.0}


class Silo:
    """A node, and what somebody who writes run configs and messages gets from it."""

    def __init__(self, folder):
        self.folder = folder
        self.state = None
        self.private = write_image_folder(folder / "private", *images_of(SILOS, 0))
        self.named = next(self.private.rglob("*.png")).rename(self.private / "3" / f"{SECRET}.png")
        self.public = write_image_folder(folder / "public", *images_of(SILOS, 1))
        self.config = {**CONFIG, "public-dataset": f"folder:{self.public}"}
        self.node = {
            "partition-id": 0,
            "data-path": str(self.private),
            "public-root": str(folder),
            "state-dir": str(folder / "state"),
            "trust-server": False,
            "client-split": CONFIG["client-split"],
            "epsilon-budget": math.inf,
            "approved-runs": str(folder / "approved-runs"),
        }

    @contextmanager
    def one_context(self):
        """Let the messages share Flower's context, as those of one run on a running node do."""
        self.state = RecordDict()
        yield
        self.state = None

    def approve(self, **changes):
        """Let the operator approve a run."""
        digest = digest_of_run({**self.config, **changes})
        add(Approval(digest, "of a test"), Path(self.node["approved-runs"]))

    def send(self, kind=MessageType.TRAIN, message=(), arrays=(), flower_run=1, **changes):
        """Send one message; return the reply, or the text of the error that leaves the node."""
        config = {"phase": "train", "server-round": 1, "run-id": "0f", **dict(message)}
        packed = ArrayRecord({name: Array(array) for name, array in dict(arrays).items()})
        content = RecordDict({"config": ConfigRecord(config), "arrays": packed})
        state = RecordDict() if self.state is None else self.state
        context = Context(flower_run, 1, dict(self.node), state, {**self.config, **changes})
        try:
            return client_app(Message(content, 1, kind), context)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            assert SECRET not in text and str(self.folder) not in text
            return text

    def client(self, **changes):
        """Return the node's client of a run."""
        node = dict(self.node)
        return build_client(Context(1, 1, node, RecordDict(), {**self.config, **changes}))

    def refuses(self, reason, **changes):
        """Check that no kind of message gets an answer."""
        for kind in (MessageType.QUERY, MessageType.TRAIN, MessageType.EVALUATE):
            answer = self.send(kind, **changes)
            assert isinstance(answer, str), f"the node answers {changes}"
            assert re.search(f"PolicyError: .*{reason}.*code [0-9a-f]{{6}}", answer)

    def files(self):
        """Return what lies in the node's folders, except its private and public images."""
        ours = (self.private, self.public, self.folder / "approved-runs")
        found = (path for path in self.folder.rglob("*") if path.is_file() and path.name != AUDIT)
        return {path for path in found if not any(map(path.is_relative_to, ours))}


@pytest.fixture
def silo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Silo(tmp_path)


def test_nobody_can_name_private_images_as_public(silo):
    (silo.folder / "link").symlink_to(silo.private)
    for path in (silo.private, silo.folder, silo.folder / "link", f"{silo.public}/../private/3"):
        for key in ("dataset", "public-dataset"):
            undescribed = {"image-shape": ""} if key == "dataset" else {}
            silo.refuses("private data", **{key: f"folder:{path}"}, **undescribed)
    outside = f"{silo.folder}/private/../.."
    for key, name in (("dataset", "clients:"), ("public-dataset", "folder:")):
        silo.refuses("public-root", **{key: f"{name}{outside}"}, **{"image-shape": ""})
    for name, root in (("mnist", "/srv"), ("mnist", outside), ("hf:org/name", "")):
        silo.refuses("public-root", **{"public-dataset": name, "data-root": root})


def test_nobody_can_let_a_closed_folder_be_read_for_its_statistics(silo):
    """With own data, ``dataset`` is a mere name, unless a setting needs its samples."""
    closed = write_image_folder(silo.folder / "closed", *images_of(SILOS, 1))
    silo.node["public-root"] = str(silo.public)
    named = {"dataset": f"folder:{closed}", "strategy": "local", "public-dataset": "none"}
    with patch.object(sources, "_load_folder") as read:
        assert isinstance(silo.send(MessageType.QUERY, **named), Message)
        for needed in ({"num-classes": "0"}, {"num-classes": "0.0"}, {"image-shape": ""}):
            silo.refuses("public-root", **named, **needed)
        answer = silo.send(MessageType.QUERY, **named, **{"input-scaling": "per-pixel"})
    assert "DataError" in answer
    assert not read.called


def test_nobody_can_copy_private_images(silo):
    mixed = write_image_folder(silo.folder / "mixed", *images_of(SILOS, 1))
    (mixed / "3" / "harmless.png").write_bytes(silo.named.read_bytes())
    silo.refuses("holds private samples", **{"public-dataset": f"folder:{mixed}"})


def test_copies_of_images_of_16_bits_are_found_at_other_levels(silo):
    """The largest number of each folder is white, so that two decoded copies differ."""
    pixels = np.arange(784, dtype=np.uint16).reshape(28, 28)
    public = next(silo.public.rglob("*.png"))
    Image.fromarray(pixels).save(silo.named)
    Image.fromarray(pixels[::-1] * 2).save(public)
    assert isinstance(silo.send(MessageType.QUERY), Message)
    (silo.public / "3" / "harmless.png").write_bytes(silo.named.read_bytes())
    forget_data()
    silo.refuses("holds private samples")


def test_nobody_can_name_a_folder_as_a_set_of_the_hub(silo):
    (silo.folder / "ylecun" / "mnist").mkdir(parents=True)
    for name in ("hf:private", "hf:hf/private", "mnist"):
        silo.refuses("public-root", **{"public-dataset": name})


def test_nobody_can_name_code(silo):
    for key in ("strategy", "models", "dataset", "public-dataset", "partition"):
        sys.modules.pop("http.server", None)
        silo.refuses("names code", **{key: "mlp,http.server:test"})
        silo.refuses("names code", **{key: "http.server:test"})
        assert "http.server" not in sys.modules
    (silo.folder / "hf.py").write_text("raise RuntimeError('imported')")
    silo.refuses("names code", partition="hf:split")
    own = {"own-settings": "mine.shared-model = 'http.server:test'"}
    silo.refuses("names code", **own)


def test_nobody_can_name_another_column(silo):
    for key in ("label-column", "image-column"):
        silo.refuses(f"{key} has to be its default", **{key: "diagnosis"})


def test_nobody_can_choose_another_method(silo):
    for strategy in ("fedavg", "scaffold", "persfl", "fedkma", "fedproto", "fd", "fml", "feddf"):
        silo.refuses("allow-methods", strategy=strategy)


def test_nobody_can_ask_for_the_mean_of_one_image(silo):
    silo.node["client-split"] = "any"
    for split in ("1/0/99", "60/1/39", "90/9/1"):
        silo.refuses("min-class-count", **{"client-split": split})
    silo.node["allow-methods"] = "fedproto"
    reply = arrays_of(silo.send(strategy="fedproto", **{"client-split": "80/0/20"}))
    held = reply["class-counts"] > 0
    assert (reply["class-counts"][held] >= 10).all() and not reply["class-means"][~held].any()


def test_nobody_can_compare_two_splits(silo):
    assert isinstance(silo.send(MessageType.QUERY), Message)
    silo.refuses("client-split", **{"client-split": "60.01/19.99/20"})
    del silo.node["client-split"]
    silo.refuses("client-split", **{"client-split": "60/20/20"})


def test_nobody_can_subtract_counts_from_a_total(silo):
    silo.node |= {"allow-methods": "fedproto", "client-split": "80/0/20"}
    split = {"strategy": "fedproto", "client-split": "80/0/20"}
    sizes = silo.send(MessageType.QUERY, **split).content.metric_records["metrics"]
    counts = arrays_of(silo.send(**split))["class-counts"]
    rest = sizes["num-examples"] - counts.sum()
    assert rest == 0 or rest >= 10


def test_nobody_can_ask_for_measures(silo):
    for measure in ("classes", "auc", "calibration", "f1,balanced-accuracy"):
        silo.refuses("measures has to be its default", measures=measure)


def test_nobody_can_read_class_shares_from_fedkma(silo):
    silo.node |= {"allow-methods": "fedkma", "client-split": "any"}
    reply = silo.send(
        message={"phase": "share-knowledge"},
        arrays={"irrelevancy": np.eye(10, dtype=np.float32)},
        strategy="fedkma",
        models="darts",
        **{"client-split": "80/0/20", "fedkma.as-printed": False},
    )
    assert set(arrays_of(reply)) == {"sharing"}
    client = silo.client(strategy="fedkma", models="darts")
    shares = client.label_distribution()
    small = client.data.class_counts.numpy() < 10
    assert len(set(shares[small])) == 1  # zeros, or uniform where all classes are hidden


def test_nobody_can_turn_the_noise_off(silo):
    del silo.node["epsilon-budget"]
    silo.refuses("lets nothing leave without noise")
    silo.node["allow-methods"] = "all"
    for strategy in ("fedavg", "fedproto", "fd"):
        silo.refuses("lets nothing leave without noise; epsilon-budget=inf", strategy=strategy)
    assert isinstance(silo.send(strategy="local"), Message)
    silo.node |= {"epsilon-budget": math.inf, "min-noise": 2.0}
    silo.refuses("min-noise")
    silo.refuses("min-noise", **{**NOISE, "soft-predictions.noise-multiplier": 1.9})
    silo.refuses("min-noise", strategy="fedavg")
    for enough in (NOISE, {"strategy": "local"}):
        assert isinstance(silo.send(MessageType.QUERY, **enough), Message)


def test_nobody_can_fix_the_noise(silo):
    known = {**NOISE, "soft-predictions.noise-seed": 7}
    silo.approve(**known)
    silo.refuses("draws its own noise", **known)


def test_nobody_can_start_many_runs(silo):
    silo.node["epsilon-budget"] = budget = privacy_spent(2.0, 3, 1e-5)
    answers = [silo.send(message={"run-id": f"{run:x}"}, **NOISE) for run in range(5)]
    assert [isinstance(answer, Message) for answer in answers] == [True] * 3 + [False] * 2
    assert "epsilon-budget of this node is spent" in answers[-1]
    ledger = PrivacyLedger(silo.folder / "state" / "0" / "privacy-ledger.jsonl")
    assert ledger.epsilon == pytest.approx(budget)


def test_nobody_can_average_noised_counts(silo):
    """Each evaluation of each run spends, whatever the method sends besides."""
    silo.node |= {"allow-counts": "noised", "count-budget": privacy_spent(5.0, 3, 1e-5)}
    answers = [
        silo.send(message={"run-id": f"{run:x}", "evaluate": True}, strategy="local")
        for run in range(5)
    ]
    assert [isinstance(answer, Message) for answer in answers] == [True] * 3 + [False] * 2
    assert "count-budget of this node is spent" in answers[-1]


def test_nobody_can_continue_from_a_model_without_noise(silo):
    """`local` sends nothing, so it needs no noise; another run then names its memory."""
    del silo.node["epsilon-budget"]
    alone = {"strategy": "local"}
    assert isinstance(silo.send(message={"run-id": "aa"}, **alone), Message)
    noisy = {"dp-sgd-noise-multiplier": 4.0}
    for changes in (noisy, NOISE, {**alone, **noisy}):
        answer = silo.send(message={"run-id": "aa", "server-round": 2}, **changes)
        assert "remembers the run with another id or other settings" in answer
    assert isinstance(silo.send(message={"run-id": "bb"}, **noisy), Message)
    assert isinstance(silo.send(message={"run-id": "aa", "server-round": 2}, **alone), Message)


def test_nobody_can_train_in_a_round_before_the_first(silo):
    """A memory of round 0 would look like none, and be of no run."""
    del silo.node["epsilon-budget"]
    alone = {"strategy": "local"}
    for server_round in (0, -1):
        for kind in (MessageType.TRAIN, MessageType.EVALUATE):
            answer = silo.send(kind, {"run-id": "aa", "server-round": server_round}, **alone)
            assert "PolicyError: the message names no round" in answer
    assert not silo.files()


def test_nobody_can_choose_a_large_delta(silo):
    silo.node["epsilon-budget"] = privacy_spent(2.0, 1, 1e-5)
    loose = {**NOISE, "soft-predictions.delta": 0.999}
    answers = [silo.send(message={"run-id": f"{run:x}"}, **loose) for run in range(2)]
    assert isinstance(answers[0], Message) and "is spent" in answers[1]


def test_nobody_can_ask_for_more_labels(silo):
    """Each label costs its part of epsilon, and the ledger counts epsilon."""
    method = {"strategy": "privatekt", "privatekt.knowledge-samples": 5}
    for number, refused in ((5, False), (6, True)):
        asked = np.packbits(np.arange(CONFIG["public-size"]) < number)
        answer = silo.send(arrays={"asked": asked}, **method)
        assert isinstance(answer, str) == refused
    assert "PolicyError: the message asks for more labels" in answer
    assert "PolicyError: the message asks for more labels" in silo.send(**method)


def test_nobody_can_ask_for_one_exact_label(silo):
    """With epsilon 10, it was that of a known image in 20 of 20 trials; see the page."""
    del silo.node["epsilon-budget"]
    alone = {"strategy": "privatekt", "privatekt.knowledge-samples": 1, "public-size": 1}
    assert "is spent" in silo.send(**alone, **{"privatekt.epsilon": 2.0})
    assert isinstance(silo.send(**alone, **{"privatekt.epsilon": 1.0}), Message)


def test_nobody_can_train_with_vanishing_noise(silo):
    silo.node["allow-methods"] = "fedavg"
    private = {"strategy": "fedavg", "dp-sgd-noise-multiplier": 1.0}
    assert isinstance(silo.send(MessageType.QUERY, **private), Message)
    assert "ConfigError" in silo.send(MessageType.QUERY, **private, **{"dp-sgd-clip-norm": 1e-45})


def test_nobody_can_train_with_noise_that_accounting_misses(silo):
    """Epsilon of 1e-160 was 0, and that of all later trainings with it."""
    silo.node |= {"allow-methods": "fedavg", "epsilon-budget": 10.0}
    for noise in (1e-160, 1e-9):
        private = {"strategy": "fedavg", "dp-sgd-noise-multiplier": noise}
        assert "ConfigError" in silo.send(MessageType.QUERY, **private)
    earlier = [{"sampling-rate": 0.05, "noise-multiplier": 1e-160, "steps": 1}]
    assert epsilon_of_trainings(earlier, 1e-5) == math.inf


def test_nobody_can_try_all_seeds_of_the_noise_in_training(silo):
    """PyTorch's generator on the CPU has 2^32; one of them fitted predictions in eight minutes."""
    del silo.node["epsilon-budget"]
    private, seeded = {"dp-sgd-noise-multiplier": 1e3, "batch-size": 4096}, np.random.default_rng
    # All that is not drawn by the system is the same in both messages.
    with patch.object(np.random, "default_rng", lambda seed=0: seeded(seed)):
        sent = [arrays_of(silo.send(message={"run-id": run}, **private)) for run in ("a1", "a2")]
    assert not np.array_equal(sent[0]["predictions"], sent[1]["predictions"])


def test_nobody_can_read_one_sample_in_the_last_digits_of_weights(silo):
    """They told whether an image was in 20 of 20 trials, with epsilon 0.8 in single precision."""
    silo.node |= {"allow-methods": "fedavg", "epsilon-budget": 10.0}
    private = {"strategy": "fedavg", "dp-sgd-noise-multiplier": 2.0, "batch-size": 4096}
    private |= {"learning-rate": 1.0, "momentum": 0.0}
    client = silo.client(**private)
    vectors = model_vectors(client.session.new_model())
    zeros = {name: np.zeros(vector.shape, np.float32) for name, vector in vectors.items()}
    sent = arrays_of(silo.send(arrays=zeros, **private))["weights"].astype(np.float64)
    steps = sent * client.data.num_train / 2.0 * 2**20
    precise = steps[np.abs(steps) < 2**14]
    assert len(precise) > 100 and np.abs(precise - precise.round()).max() < 0.01


def test_nobody_can_shift_the_dropout_of_other_samples(silo):
    """The class of an image decides its place, and its place decided the masks of all after it."""
    data = silo.client().data
    model = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(784, 10))
    quiet, sums = PrivateGradients(1.0, 1.0, 1.0, np.zeros), []
    places = torch.arange(data.num_train)
    for first in (places[:0], places[:65]):
        for second in (places, places.roll(1)):
            torch.manual_seed(0)
            for chosen in (first, second):
                batch = data.train_images[chosen], data.train_labels[chosen]
                quiet(model, cross_entropy, batch, list(model.parameters()))
            sums.append(model[2].weight.grad)
    assert max(float((other - sums[0]).norm()) for other in sums) < 0.01


def test_nobody_can_see_one_image_scale_all_others(silo):
    """The largest number in images of 16 bits becomes white in each of them."""
    pixels = np.full((28, 28), 4095, dtype=np.uint16)
    Image.fromarray(pixels).save(silo.named)
    private = {"dp-sgd-noise-multiplier": 4.0}
    silo.refuses("images of 16 bits or transparent ones", **private)
    assert isinstance(silo.send(), Message)
    silo.node["allow-counts"] = "noised"
    silo.refuses("images of 16 bits or transparent ones")


def test_nobody_can_measure_one_sample(silo):
    """`local` sends nothing, but its mean loss was that of a batch, which may be one sample."""
    del silo.node["epsilon-budget"]
    silo.refuses("batch-size has to be from min-class-count", **{"batch-size": 1})
    alone = {"strategy": "local", "learning-rate": 1e-30}
    assert metrics_of(silo.send(**alone)) == {"gradient-steps"}
    silo.node["allow-training-metrics"] = True
    assert metrics_of(silo.send(**alone)) == {"gradient-steps", "train-loss", "moved-private"}


def test_nobody_can_train_on_one_sample(silo):
    """Predictions without noise hold it then, and counts after an evaluation hold its label."""
    for strategy in ("kt-pfl", "local"):
        silo.refuses("batch-size", **{"batch-size": 9}, strategy=strategy)
        silo.refuses("local-iterations", **{"local-iterations": 10}, strategy=strategy)
    assert isinstance(silo.send(**{"batch-size": 10}), Message)


def test_nobody_can_erase_the_weights_before_the_last_step(silo):
    """The final model is then the gradient of the last batch."""
    alone = {"strategy": "local", "momentum": 0.0, "optimizer": "sgd"}
    silo.refuses("weight-decay", **alone, **{"learning-rate": 1.0, "weight-decay": 1.0})
    silo.refuses("learning-rate", **alone, **{"learning-rate": 10.0, "weight-decay": 0.1})


def test_nobody_can_take_the_difference_of_two_runs(silo):
    """With one seed they differed in one batch; now each run has batches of its own."""
    sent = [arrays_of(silo.send(message={"run-id": run}))["predictions"] for run in ("a1", "a2")]
    assert np.abs(sent[0] - sent[1]).max() > 1e-4
    silo.node["allow-methods"] = "fedrep"
    drawn = []

    def epochs(*arguments):
        drawn.append([batch.tolist() for batch in epoch_batches(*arguments)])
        return map(torch.tensor, drawn[-1])

    with patch.object(session, "epoch_batches", epochs):
        for run in ("a3", "a4"):
            silo.send(message={"run-id": run}, strategy="fedrep", models="mlp")
    assert len(drawn) == 2 and drawn[0] != drawn[1]


def test_nobody_can_find_training_images_by_a_mask(silo):
    """It is computed from them, and leaves without noise."""
    silo.refuses("allow-methods", strategy="selective-fd")
    silo.node["allow-methods"] = "selective-fd"
    for key, value in (("kernel-width", 2.0), ("client-quantile", 1.0)):
        silo.refuses(key, strategy="selective-fd", **{f"selective-fd.{key}": value})


def test_nobody_can_choose_when_the_steps_of_fedala_end(silo):
    silo.node["allow-methods"] = "fedala"
    silo.refuses("fedala.threshold", strategy="fedala", **{"fedala.threshold": 0.5})


def test_no_seed_chooses_samples(silo):
    """Two runs would differ in single ones; FedAPEN learned a weight from 3 of 70."""
    silo.node["allow-methods"] = "all"
    search = {"models": "darts", "supernet-channels": 2, "supernet-cells": 3}
    found = []
    for seed in (0, 1):
        apen = silo.client(seed=seed, strategy="fedapen")
        nas = silo.client(seed=seed, strategy="fednas", **search)
        found.append([*apen.parts, *nas.search_samples()])
    assert all(map(torch.equal, *found))
    assert len(found[0][0]) == 10


def metrics_of(reply):
    return set(reply.content.metric_records["metrics"])


def test_nobody_can_learn_whether_a_sample_lets_a_training_diverge(silo):
    """Two runs differ in the learning rate. With one of them weights or losses are no numbers."""
    silo.node |= {"epsilon-budget": 1e4, "allow-counts": False}
    with_noise = {**NOISE, "batch-size": 1, "local-iterations": 10}
    fine_tuned = {**NOISE, "fine-tune-epochs": 1}
    for kind, run, method in (
        (MessageType.TRAIN, "a", with_noise),
        (MessageType.TRAIN, "b", {"strategy": "local"}),
        (MessageType.EVALUATE, "c", fine_tuned),
    ):
        answers = []
        for n, rate in enumerate((1e-3, 1e38)):
            silo.approve(**method, **{"learning-rate": rate})
            message = {"run-id": f"{run}{n}"}
            answers.append(silo.send(kind, message, **method, **{"learning-rate": rate}))
        assert all(isinstance(answer, Message) for answer in answers)
        shapes = [{k: v.shape for k, v in arrays_of(answer).items()} for answer in answers]
        assert shapes[0] == shapes[1] and metrics_of(answers[0]) == metrics_of(answers[1])


def overflowing(client, images, above):
    """Return weights of an infinite loss if a pixel exceeds a threshold, as it does if `above`."""
    model, pixels = client.session.new_model(), images.flatten(1)
    pixel = int(pixels.std(0).argmax())
    with torch.no_grad():
        *layers, _ = parameters = list(model.parameters())
        for parameter in parameters:
            parameter.zero_()
        layers[0][0, pixel] = 1e30
        layers[1][0] = -1e30 * float(pixels[:, pixel].max() - above * 1e-3)
        layers[2][0, 0] = 1e30
    return {k: np.array(v) for k, v in model_vectors(model).items()}


def test_nobody_can_let_the_loss_of_one_sample_overflow(silo):
    silo.node |= {"allow-methods": "parameters", "epsilon-budget": 1e4}
    private = {"strategy": "fedavg", "dp-sgd-noise-multiplier": 1e3, "batch-size": 4096}
    client = silo.client(**private)
    for above in (-1, 1):
        arrays = overflowing(client, client.data.train_images, above)
        trained = arrays_of(silo.send(arrays=arrays, **private))
        # The noise is there: the training was not undone, which would tell as much.
        assert not np.array_equal(trained["weights"], arrays["weights"])


@pytest.mark.parametrize(
    ("method", "kind", "phase", "part", "settings"),
    [
        ("persfl", MessageType.TRAIN, "personalize", "validation_images", {"validate-every": 1}),
        ("per-fedavg", MessageType.EVALUATE, "train", "train_images", {"adaptation": "epoch"}),
        ("fedala", MessageType.EVALUATE, "train", "train_images", {}),
    ],
)
def test_an_infinite_loss_of_one_sample_is_unseen(silo, method, kind, phase, part, settings):
    """A message of PersFL's stage 2 told whether a known validation image is there."""
    silo.node["allow-methods"] = method
    settings = {"strategy": method, **{f"{method}.{key}": v for key, v in settings.items()}}
    client, answers = silo.client(**settings), []
    initial = {k: np.array(v) for k, v in model_vectors(client.session.new_model()).items()}
    for above in (-1, 1):
        message = {"run-id": f"a{above + 1}"}
        with silo.one_context():
            if kind == MessageType.EVALUATE:
                assert isinstance(silo.send(message=message, arrays=initial, **settings), Message)
            arrays = overflowing(client, getattr(client.data, part), above)
            answers.append(silo.send(kind, {**message, "phase": phase}, arrays, **settings))
    below, above = (dict(answer.content.metric_records["metrics"]) for answer in answers)
    assert below == above


def test_nobody_can_replace_the_memory_of_another_run(silo):
    """Its `run-id` comes in a message, and so does whether a client starts over."""
    del silo.node["epsilon-budget"]
    silo.node["models-dir"] = str(silo.folder / "models")
    alone, last = {"strategy": "local"}, {"last-round": True, "evaluate": True}
    assert isinstance(silo.send(message={"run-id": "aa", **last}, **alone), Message)
    kept = {path: path.read_bytes() for path in silo.files() if path.name != "lock"}
    best = {"keep-best": True, "client-split": CONFIG["client-split"]}
    for kind, message in (
        (MessageType.TRAIN, {"trained-rounds": 1}),
        (MessageType.TRAIN, {"server-round": 1}),
        (MessageType.EVALUATE, {"server-round": 1, "last-round": True}),
        (MessageType.EVALUATE, {"server-round": 7}),
    ):
        answer = silo.send(kind, {"run-id": "aa", **message}, **NOISE, **best)
        assert "PolicyError: this node remembers" in answer
    assert all(path.read_bytes() == content for path, content in kept.items())
    other = {**alone, **best, "learning-rate": 1e-9, "models": "lenet", "seed": 2}
    assert "PolicyError: this node remembers" in silo.send(message={"run-id": "aa"}, **other)
    del silo.node["state-dir"]
    silo.node["epsilon-budget"] = math.inf
    for kind in (MessageType.TRAIN, MessageType.EVALUATE):
        answer = silo.send(kind, {"run-id": "aa", **last}, flower_run=2, **other)
        assert isinstance(answer, Message)
    assert all(path.read_bytes() == content for path, content in kept.items())


def test_nobody_can_name_other_code_than_the_approved(silo):
    forest = {"models": "sklearn.ensemble:RandomForestClassifier", "min-replies": 1}
    silo.approve(**forest)
    assert isinstance(silo.send(MessageType.QUERY, **forest), Message)
    silo.refuses("names code", **{**forest, "models": "sklearn.ensemble:ExtraTreesClassifier"})
    silo.refuses("names code", **{**forest, "public-dataset": "sklearn:os.getcwdb"})
    silo.refuses("names code", **{**forest, "learning-rate": 0.02})


def test_nobody_can_set_options_of_an_estimator(silo):
    """They can name a folder, and some values fail only if a class has few samples."""
    forest = {"models": "sklearn.ensemble:RandomForestClassifier", "strategy": "local"}
    options = {"estimator-options": "RandomForestClassifier = {n_estimators = 5}"}
    silo.approve(**forest)
    silo.refuses("names code", **forest, **options)
    silo.approve(**forest, **options)
    silo.node["allow-counts"] = False
    with patch.object(RandomForestClassifier, "fit", side_effect=ValueError(SECRET)):
        assert metrics_of(silo.send(**forest, **options)) == {"gradient-steps"}


def test_nobody_can_see_an_estimator_fail_on_a_public_sample(silo):
    """Some fail on values above all of their training: the largest was read in 10 of 10 trials."""
    silo.node["epsilon-budget"] = 10.0
    forest = {"models": "sklearn.ensemble:RandomForestClassifier", **NOISE}
    silo.approve(**forest)
    with patch.object(RandomForestClassifier, "predict_proba", side_effect=IndexError(SECRET)):
        assert set(arrays_of(silo.send(**forest))) == {"predictions"}


def test_an_estimator_that_fails_on_a_sample_changes_one_prediction(silo):
    """All predictions became uniform: one noised count told of a single sample in 16 of 16."""
    silo.node["allow-counts"] = "noised"
    forest = {"strategy": "local", "models": "sklearn.ensemble:RandomForestClassifier"}
    silo.approve(**forest)
    client = silo.client(**forest)
    client.train_locally(1)
    images, predict_proba = client.data.test_images, RandomForestClassifier.predict_proba
    unseen = images[3].flatten().numpy()

    def failing(self, rows):
        if (rows == unseen).all(axis=1).any():
            raise IndexError(SECRET)
        return predict_proba(self, rows)

    before = client.predict(client.model, images)
    with patch.object(RandomForestClassifier, "predict_proba", failing):
        after = client.predict(client.model, images)
    assert (before != after).any(dim=1).nonzero().flatten().tolist() == [3]


def test_nobody_can_compare_private_images_at_another_size(silo):
    """A refusal would tell whether an image has the pixels of a public one, at any size."""
    del silo.node["epsilon-budget"]
    noised = {**NOISE, "image-shape": "1,1,1"}
    copies = write_image_folder(silo.folder / "mixed", *images_of(SILOS, 1))
    (copies / "3" / "harmless.png").write_bytes(silo.named.read_bytes())
    for public in (copies, silo.public):
        answer = silo.send(MessageType.QUERY, **noised, **{"public-dataset": f"folder:{public}"})
        assert isinstance(answer, Message)


def test_nobody_can_compare_private_images_at_few_pixels(silo):
    """An image of one pixel is a brightness, which a refusal would tell, of test images too."""
    other = Image.open(silo.named)
    gray = Image.new("L", other.size, round(np.asarray(other).mean()))
    Image.fromarray(np.asarray(gray)).save(silo.public / "3" / "harmless.png")
    for sides in ("1,1", "7,28", "28,7"):
        for public in (silo.public, silo.public / "3"):
            small = {"image-shape": f"1,{sides}", "public-dataset": f"folder:{public}"}
            silo.refuses("fewer than 8 pixels a side", **small)
    assert isinstance(silo.send(MessageType.QUERY, **{"image-shape": "1,8,8"}), Message)
    for sides in ("1,1", "7,28"):
        small = {"strategy": "local", "image-shape": f"1,{sides}"}
        assert isinstance(silo.send(MessageType.QUERY, **small), Message)


def test_nobody_can_count_the_steps_of_fine_tuning(silo):
    """With early stopping, they end where single images let the training diverge."""
    silo.node["epsilon-budget"] = 10.0
    changes = {"strategy": "local", "fine-tune-epochs": 4, "fine-tune-early-stopping": True}
    for n, rate in enumerate((1e-3, 1e38)):
        message = {"evaluate": True, "run-id": f"a{n}"}
        silo.refuses("fine-tune-early-stopping", **changes)
        silo.approve(**changes, **{"learning-rate": rate})
        reply = silo.send(message=message, **changes, **{"learning-rate": rate})
        assert "fine-tuning-steps" not in metrics_of(reply)


def test_nobody_can_choose_a_norm_that_rounding_exceeds(silo):
    for norm in (1.3e-6 / 2, 1e-9):
        answer = silo.send(MessageType.QUERY, **{**NOISE, "soft-predictions.clip-norm": norm})
        assert "ConfigError" in answer
    sure, clipped = np.eye(2, dtype=np.float32)[np.zeros(1000, dtype=int)], []
    with patch.object(
        privacy, "project_onto_simplex", lambda rows, _: clipped.append(rows) or rows
    ):
        for rows in (sure, 1 - sure):
            noised_predictions(rows, 1.34e-6, 1.0, draw=np.zeros)
    assert np.linalg.norm(clipped[0] - clipped[1]) <= 2 * 1.34e-6 * (1 + 1e-6)


def test_nobody_can_set_the_ledger_back(silo):
    """Rounding makes the accountant find less after some trainings than before."""
    ledger = PrivacyLedger(silo.folder / "state" / "0" / "privacy-ledger.jsonl", budget=10.0)
    usual = {"sampling-rate": 0.05, "noise-multiplier": 1.0, "steps": 300}
    ledger.record(usual, "aa", 1)
    back = {"sampling-rate": 1 / 3e6, "noise-multiplier": 1e4, "steps": 1e30}
    assert epsilon_of_trainings([usual, back], 1e-5) < ledger.epsilon_of_training
    with pytest.raises(PolicyError, match="epsilon-budget"):
        ledger.record(back, "aa", 2)


def test_nobody_can_fill_the_disk_with_rounds(silo):
    with silo.one_context():
        for server_round in range(1, 6):
            message = {"server-round": server_round}
            assert isinstance(silo.send(message=message), Message)
    assert len([path for path in silo.files() if path.name.startswith("round-")]) == 2


def test_nobody_can_ask_which_accounts_exist(silo):
    """`~NAME` stands for a home folder if there is such an account."""
    for name in ("root", "no-such-account"):
        silo.refuses("public-root", **{"public-dataset": f"folder:~{name}/images"})
        silo.refuses("public-root", **{"public-dataset": "hf:a/b", "data-root": f"~{name}"})


def test_nobody_can_spoil_a_row(silo):
    """With this learning rate weights are infinite, and predictions are no numbers."""
    answer = silo.send(**NOISE, **{"learning-rate": 1e30})
    assert isinstance(answer, str) or np.isfinite(arrays_of(answer)["predictions"]).all()


def test_nobody_can_name_folders_to_write(silo):
    victim = silo.folder / "victim" / "0.json"
    victim.parent.mkdir()
    victim.write_text("of another application")
    folder = {"models-dir": str(victim.parent), "state-dir": str(victim.parent)}
    before = silo.files()
    for run_id in (str(victim.parent), "../../victim", "..", "0F"):
        for message in ({}, {"last-round": True, "evaluate": True}, {"trained-rounds": 2}):
            answer = silo.send(message={"run-id": run_id, **message}, **folder)
            assert "PolicyError: the id of the run" in answer
    silo.node["models-dir"] = str(silo.folder / "models")
    approved = silo.folder / "models" / "approved" / "aa"
    approved.mkdir(parents=True)
    evaluated = {"last-round": True, "server-round": 1}
    with silo.one_context():
        assert isinstance(silo.send(), Message)
        for run_id in (str(victim.parent), "../victim", "approved/aa", "bb"):
            answer = silo.send(MessageType.EVALUATE, {**evaluated, "run-id": run_id})
            assert "PolicyError" in answer
        assert isinstance(silo.send(MessageType.EVALUATE, evaluated), Message)
    assert not list(approved.iterdir()) and not list((silo.folder / "models").glob("*-bb"))
    assert isinstance(silo.send(message={"last-round": True, "evaluate": True}, **folder), Message)
    assert victim.read_text() == "of another application"
    own = (silo.folder / "state", silo.folder / "models" / "1-0f")
    assert all(any(map(path.is_relative_to, own)) for path in silo.files() - before)


def test_nobody_can_provoke_errors(silo):
    silo.named.write_bytes(b"no image")
    answers = [
        silo.send(),
        silo.send(strategy="kt-fpl"),
        silo.send(models="perceptron"),
        silo.send(arrays={"teacher": np.zeros((1, 1), np.float32)}),
        silo.send(message={"server-round": "first"}),
        silo.send(**{"image-shape": "9,9,9"}),
        silo.send(**{"own-settings": "my.day = 2020-01-01"}),
        silo.send(**{"own-settings": f"my.list = {'[' * 5000}"}),
    ]
    for answer in answers:  # `send` has checked that no name of a file or folder is in them
        assert re.fullmatch(
            r"NodeFailureError: \w+: [^'/]+ \(code \w{6} in the node's log\)", answer
        )


def test_nobody_can_time_a_round(silo):
    assert "seconds" not in silo.send().content.config_records["info"]


def test_a_node_draws_the_same_batches_again_in_one_message(silo):
    """`moon` and `fedntd` gather what belongs to the samples of a batch beside it."""
    silo.node["allow-methods"] = "fedntd"
    first, second = (silo.client(strategy="fedntd", models="mlp") for _ in range(2))
    once, again, other = (
        [batch.tolist() for batch in client.session.private_positions(1, 50)]
        for client in (first, first, second)
    )
    assert once == again and once != other


def test_the_page_has_a_row_for_each_attempt():
    section = PAGE.read_text().partition("## What the run config can do")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert len(rows) - 1 == sum(name.startswith("test_nobody_can_") for name in globals())


def test_an_honest_run_is_served(silo):
    reply = silo.send(message={"evaluate": True})
    assert set(arrays_of(reply)) == {"predictions"}
    assert set(reply.content.config_records["info"]) == {"partition-id", "model", "versions"}
