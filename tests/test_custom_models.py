"""Custom models: built like the others, heads found, unusable ones refused."""

import numpy as np
import pytest
import torch
from helpers import assert_refused, client_of, run_with
from torch import nn

import fedkd_flwr
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import ConfigError
from fedkd_flwr.export import save_personalized_model
from fedkd_flwr.models.build import build_custom_model, checked_custom_model
from fedkd_flwr.models.features import features_and_logits, fold_into, with_common_width
from fedkd_flwr.models.genotype import STANDARD
from fedkd_flwr.models.layers import head_of
from fedkd_flwr.models.model_pool import Architecture, borrow, give_back

TINY = "examples.own_model:TinyNet"
HERE = "test_custom_models"


class HeadFirst(nn.Module):
    """Registers its head before its body, and holds whole numbers that matter."""

    def __init__(self, shape, classes):
        super().__init__()
        self.fc = nn.Linear(5, classes)
        self.body = nn.Sequential(nn.Flatten(), nn.LazyLinear(5))
        self.register_buffer("order", torch.tensor([4, 3, 2, 1, 0]))

    def forward(self, samples):
        return self.fc(self.body(samples)[:, self.order])


def with_part(name, part):
    """Return a builder of the network above with one more attribute."""

    def build(shape, classes):
        model = HeadFirst(shape, classes)
        setattr(model, name, part(model))
        return model

    return build


longer = with_part("mix", lambda model: nn.Linear(5, 5))
tied = with_part("again", lambda model: model.fc)
doubles = with_part("extra", lambda model: nn.Parameter(torch.zeros(1, dtype=torch.float64)))


class Drifting(HeadFirst):
    """Centers its features by a mean that only it knows, and keeps its last answer."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.register_buffer("mean", torch.zeros(5), persistent=False)
        self.register_buffer("last", torch.full((1,), 7.0), persistent=False)
        self.register_buffer("first", None, persistent=False)

    def forward(self, samples):
        entered = self.body(samples)
        if self.training:
            self.mean.lerp_(entered.detach().mean(0), 0.5)
            self.first = entered.detach()
        self.last = self.fc(entered - self.mean)
        return self.last


class SharedBuffers(HeadFirst):
    """Has two buffers in the same memory, which the file format does not."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        mean = torch.full((3,), 2.0)
        self.register_buffer("mean", mean)
        self.register_buffer("again", mean)


ONE = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
BODY = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.BatchNorm1d(8))
FROZEN = nn.Sequential(nn.Flatten(), nn.Linear(784, 16)).requires_grad_(False)


def one_for_all(shape, classes):
    return ONE


def with_a_shared_body(shape, classes):
    return nn.Sequential(BODY, nn.Linear(8, classes))


def with_shared_statistics(shape, classes):
    own = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.BatchNorm1d(8))
    own[2].running_mean = BODY[2].running_mean
    return nn.Sequential(own, nn.Linear(8, classes))


def with_weights_of(draws, classes):
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, classes))
    weights = draws.normal(size=model[1].weight.shape)
    nn.init.zeros_(model[1].weight).data += torch.from_numpy(weights).float()
    return model


def drawn_by_numpy(shape, classes):
    return with_weights_of(np.random, classes)


def seeded_by_torch(shape, classes):
    return with_weights_of(np.random.default_rng(torch.initial_seed()), classes)


def with_a_frozen_body(shape, classes):
    return nn.Sequential(FROZEN, nn.Linear(16, classes))


class Scaled(HeadFirst):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, samples):
        return self.fc(self.scale * self.body(samples))


def one_logit(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 1))


def no_module(shape, classes):
    return None


def nothing_to_train(shape, classes):
    return nn.Flatten()


def only_ten_wide(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(10, classes))


not_callable = 3


def test_the_head_is_the_layer_that_returns_the_logits():
    model = build_custom_model(f"{HERE}:HeadFirst", (1, 2, 2), 3)
    assert head_of(model) is model.fc
    assert model.training
    samples = torch.randn(4, 1, 2, 2)
    before = model(samples)
    wide = with_common_width(model, 7)
    assert head_of(wide) is model.fc[1]
    features, logits = features_and_logits(wide, samples)
    assert features.shape == (4, 7)
    assert not torch.equal(before, logits)
    plain = fold_into(build_custom_model(f"{HERE}:HeadFirst", (1, 2, 2), 3), wide)
    torch.testing.assert_close(plain(samples), logits)


def test_buffers_outside_the_state_dict_are_as_they_were_built_for_the_next_client():
    architecture = Architecture(f"{HERE}:Drifting", (1, 2, 2), 3, STANDARD, "cpu")
    model = borrow(architecture)
    assert not model.mean.any()
    for _ in range(2):
        model.train()(torch.randn(4, 1, 2, 2))
        with torch.inference_mode():
            model.eval()(torch.randn(6, 1, 2, 2))
        assert model.mean.any() and model.first is not None and model.last.shape == (6, 3)
        give_back(model)
        assert borrow(architecture) is model
        assert model.mean.tolist() == [0] * 5
        assert model.first is None
        # The answer of the builder's sample of zeros, and a tensor that training may change.
        assert model.last.add_(0).shape == (1, 3)


def test_layers_that_a_client_has_frozen_are_as_they_were_built_for_the_next_client():
    architecture = Architecture(f"{HERE}:head_and_frozen_body", (1, 28, 28), 3, STANDARD, "cpu")
    model = borrow(architecture)
    as_built = [False, False, True, True]
    for is_trained in (False, True):
        model.requires_grad_(is_trained)
        give_back(model)
        assert borrow(architecture) is model
        assert [parameter.requires_grad for parameter in model.parameters()] == as_built


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no_such_package.nets:Tiny", "no_such_package.nets cannot be imported here .ModuleNotF"),
        (f"{HERE}:Nothing", f"{HERE} holds no Nothing"),
        (f"{HERE}:not_callable", "is a int, and should be callable: .shape, classes. -> torch"),
        (f"{HERE}:no_module", "is a NoneType; it should be .shape, classes. -> torch.nn.Module"),
        (f"{HERE}:one_logit", r"to logits \(n, 10\), and returns \(1, 1\) for n = 1"),
        (f"{HERE}:only_ten_wide", r"fails on samples \(n, 1, 28, 28\): RuntimeError"),
        (f"{HERE}:nothing_to_train", r"to logits \(n, 10\), and returns \(1, 784\)"),
        (f"{HERE}:tied", "fc.weight and again.weight are one tensor"),
        (f"{HERE}:doubles", "extra is torch.float64, and should be torch.float32"),
        # It would take the shape for its weights and download them.
        (
            "torchvision.models:mobilenet_v3_small",
            r"classes\): return torchvision.models.mobilenet_v3_small\(num_classes=classes\)",
        ),
    ],
)
def test_unusable_models_are_refused_in_one_line_before_training(name, sentence, small, tmp_path):
    assert_refused(sentence, {**small, "models": f"mlp,{name}"}, tmp_path / "run")


@pytest.mark.parametrize("name", ["nope", "a b:c", "os/path:join", "x:", ":y", "a:b:c"])
def test_a_malformed_name_is_refused(name, small):
    with pytest.raises(ConfigError, match="or your own as module:object"):
        fedkd_flwr.run(small, models=name)


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "kt-pfl", "models": f"mlp,{TINY}"},
        {"strategy": "fedproto", "models": f"mlp,{HERE}:HeadFirst"},
        {"strategy": "fedper", "models": TINY},
        {"strategy": "fml", "models": "mlp", "fml.shared-model": TINY},
        {"strategy": "feddf", "models": f"mlp,{TINY}"},
        {"strategy": "fedkd", "models": "mlp", "fedkd.shared-model": f"{HERE}:Scaled"},
    ],
    ids=lambda changes: changes["strategy"],
)
def test_every_family_accepts_custom_models(changes, small, tmp_path):
    changes = {**changes, "num-server-rounds": 1, "num-clients": 2}
    run = fedkd_flwr.run({**small, **changes}, output_dir=tmp_path / "run")
    assert list(run.rounds["failures"]) == [0]
    assert run.summary["last_round"]["accuracy_mean"] > 0


def test_an_exported_model_is_loaded_with_its_builder(small, tmp_path):
    changes = {"models-dir": str(tmp_path / "models"), "num-server-rounds": 1, "models": TINY}
    fedkd_flwr.run({**small, **changes, "strategy": "local"}, output_dir=tmp_path / "run")
    path = tmp_path / "models" / "0.safetensors"
    with pytest.raises(ValueError, match="pass its builder to load_model"):
        fedkd_flwr.load_model(path)
    from examples.own_model import TinyNet

    images = torch.randn(2, 1, 28, 28)
    expected = client_of({**small, **changes})  # its shape and classes are the run's
    loaded = fedkd_flwr.load_model(path, TinyNet)
    assert loaded(images).shape == (2, expected.data.classes)
    with pytest.raises(ValueError, match="should map samples"):
        fedkd_flwr.load_model(path, lambda shape, classes: TinyNet(shape, classes + 1))


def test_buffers_that_share_memory_are_exported(small, tmp_path):
    changes = {"models-dir": str(tmp_path / "models"), "models": f"{HERE}:SharedBuffers"}
    run = fedkd_flwr.run({**small, **changes, "strategy": "fedavg"}, output_dir=tmp_path / "run")
    assert list(run.rounds["failures"]) == [0, 0]
    model = fedkd_flwr.load_model(tmp_path / "models" / "0.safetensors", SharedBuffers)
    assert model.mean.tolist() == model.again.tolist() == [2, 2, 2]


@pytest.mark.parametrize("error", [RuntimeError("Some tensors share memory"), OSError("full")])
def test_a_failed_export_does_not_lose_results(error, small, tmp_path, monkeypatch, logged):
    def refusing(*arguments):
        raise error

    monkeypatch.setattr("fedkd_flwr.clients.session.save_personalized_model", refusing)
    changes = {"models-dir": str(tmp_path / "models"), "models": TINY, "strategy": "fedavg"}
    run = fedkd_flwr.run({**small, **changes}, output_dir=tmp_path / "run")
    assert list(run.rounds["failures"]) == [0, 0]
    assert run.summary["last_round"]["accuracy_mean"] > 0
    assert any("Client 1: its model was not exported" in line for line in logged())


@pytest.mark.parametrize(
    ("stored", "builder", "sentence"),
    [
        (HeadFirst, longer, r'Missing key\(s\) in state_dict: "mix.weight", "mix.bias"'),
        (longer, HeadFirst, r'Unexpected key\(s\) in state_dict: "mix.bias", "mix.weight"'),
    ],
)
def test_a_file_of_other_tensors_is_refused_in_one_line(stored, builder, sentence, tmp_path):
    model = checked_custom_model(stored((1, 2, 2), 3), f"{HERE}:Net", (1, 2, 2), 3)
    card = {"model": f"{HERE}:Net", "shape": [1, 2, 2], "classes": 3, "partition-id": 0}
    path = save_personalized_model(model, card, tmp_path)
    assert fedkd_flwr.load_model(path, stored).state_dict().keys() == model.state_dict().keys()
    with pytest.raises(ValueError, match=f"0.safetensors does not fit .*: .*{sentence}") as refused:
        fedkd_flwr.load_model(path, builder)
    assert "\n" not in str(refused.value)


def test_a_model_name_in_a_reply_is_never_imported(small, tmp_path, monkeypatch):
    """A reply's model name is only ever compared; FedDF keeps a model an architecture."""
    imported = []
    monkeypatch.setattr("fedkd_flwr.custom_objects.importing.resolve_name", imported.append)

    def lying(message, context):
        reply = client_app(message, context)
        reply.content.config_records["info"]["model"] = "os:getcwd"
        return reply

    changes = {"strategy": "feddf", "models": "mlp", "num-server-rounds": 1}
    run, _ = run_with(lying, {**small, **changes}, tmp_path / "run")
    assert run.finished
    assert imported == []


def linear_net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, classes))


def deep_net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 20), nn.ReLU(), nn.Linear(20, classes))


@pytest.mark.parametrize("cohort", ["auto", "on"])
def test_a_redefined_network_is_used_in_the_next_run(cohort, small, tmp_path, monkeypatch):
    """As a cell of a notebook that is edited and run again."""

    def losses(builder, name):
        monkeypatch.setattr(f"{HERE}.linear_net", builder)
        changes = {"models": f"{HERE}:linear_net", "strategy": "fedavg", "cohort": cohort}
        return list(
            fedkd_flwr.run({**small, **changes}, output_dir=tmp_path / name).rounds["loss_mean"]
        )

    before = linear_net
    deep = losses(deep_net, "deep")
    assert losses(before, "linear") != deep
    assert losses(deep_net, "again") == deep


@pytest.mark.parametrize(
    ("builders", "reason"),
    [
        (["one_for_all"], r"1\.weight, 1\.bias would be one tensor in the models of several"),
        (["with_a_shared_body"], r"0\.1\.weight, .*0\.2\.num_batches_tracked would be one tensor"),
        (["with_shared_statistics"], r": 0\.2\.running_mean would be one tensor"),
        (["with_shared_statistics", "with_a_shared_body"], r"0\.2\.running_mean would be one"),
        (["drawn_by_numpy"], r": 1\.weight differ between two calls under one seed\. Draw them"),
    ],
)
def test_a_builder_builds_a_new_network_at_each_call(builders, reason, small):
    models = ",".join(f"{HERE}:{name}" for name in builders)
    with pytest.raises(ConfigError, match=reason):
        fedkd_flwr.run(small, strategy="local", models=models)


class Listed(HeadFirst):
    """Keeps a layer in a list, which PyTorch does not search."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.layers = [nn.Linear(5, 5)]

    def forward(self, samples):
        return self.fc(self.layers[0](self.body(samples)))


class Forgotten(HeadFirst):
    """Draws a number that no file of the model holds."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.register_buffer("scale", torch.rand(1), persistent=False)

    def forward(self, samples):
        return self.scale * super().forward(samples)


def of_drawn_width(shape, classes):
    width = int(torch.randint(2, 1000, ()))
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.Linear(width, classes))


def test_a_network_of_drawn_shape_is_refused(small):
    with pytest.raises(ConfigError, match="of_drawn_width builds networks of other shapes under"):
        fedkd_flwr.run(small, strategy="local", models=f"{HERE}:of_drawn_width")


@pytest.mark.parametrize("name", ["Listed", "Forgotten"])
def test_weights_outside_of_the_state_are_refused(name, small):
    with pytest.raises(ConfigError, match=f"{name}: two networks with the same .* nn.ModuleList"):
        fedkd_flwr.run(small, strategy="local", models=f"{HERE}:{name}")


class ScalingInPlace(HeadFirst):
    def forward(self, samples):
        samples *= 2
        return super().forward(samples)


def cut_in_place(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True), nn.LazyLinear(classes))


@pytest.mark.parametrize("name", ["ScalingInPlace", "cut_in_place"])
def test_a_network_that_changes_its_samples_is_refused(name, small):
    """Evaluations read views of the data, which all clients and rounds share."""
    with pytest.raises(ConfigError, match=f"{name} changes its samples in place, and later eval"):
        fedkd_flwr.run(small, strategy="local", models=f"{HERE}:{name}")


class Dropping(HeadFirst):
    def forward(self, samples):
        return nn.functional.dropout(super().forward(samples))


class Centered(HeadFirst):
    def forward(self, samples):
        return super().forward(samples - samples.mean(0))


class Bounded(HeadFirst):
    def forward(self, samples):
        return super().forward(samples).sigmoid()


def cut_off(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes), nn.ReLU())


class Noisy(HeadFirst):
    """Augments with a generator that the run does not seed."""

    def forward(self, samples):
        return super().forward(samples + np.random.random() * self.training)


class Counting(HeadFirst):
    """Counts in an attribute, which clients that use the network in turn share."""

    steps = 0

    def forward(self, samples):
        self.steps += self.training
        return super().forward(samples) / (1 + self.steps)


class DroppingInTraining(HeadFirst):
    def forward(self, samples):
        return nn.functional.dropout(super().forward(samples), training=self.training)


class OfLightning(HeadFirst):
    def training_step(self, batch, batch_index):
        raise AssertionError


@pytest.mark.parametrize(
    ("name", "doubt"),
    [
        ("OfLightning", ["has a training_step, which is not called"]),
        ("Bounded", ["ends with sigmoid, which bounds its answers"]),
        ("cut_off", ["ends with relu, which bounds its answers"]),
        ("Dropping", ["answers differently when asked twice"]),
        ("Noisy", ["trains differently than a new network with the same state"]),
        ("Counting", ["trains differently than a new network with the same state"]),
        ("DroppingInTraining", []),
        ("Centered", ["answers to a sample by the others in its batch"]),
        ("HeadFirst", []),
        ("normalized", []),
    ],
)
def test_answers_that_are_seldom_meant_are_warned_about(name, doubt, small, logged, tmp_path):
    fedkd_flwr.run(small, strategy="local", models=f"{HERE}:{name}", output_dir=tmp_path / "run")
    said = [line for line in logged() if f"{HERE}:{name} " in line]
    assert [line.removeprefix(f"{HERE}:{name} ").split(":")[0] for line in said] == doubt


def test_clients_of_a_cohort_may_share_what_is_frozen(small, tmp_path):
    body = FROZEN[1].weight.clone()
    small |= {"strategy": "local", "models": f"{HERE}:with_a_frozen_body"}
    apart, together = (
        fedkd_flwr.run(small, cohort=cohort, output_dir=tmp_path / cohort).rounds["loss_mean"]
        for cohort in ("off", "on")
    )
    assert apart.tolist() == pytest.approx(together.tolist())
    assert torch.equal(FROZEN[1].weight, body)
    assert fedkd_flwr.run(
        small, models=f"{HERE}:seeded_by_torch", output_dir=tmp_path / "n"
    ).finished


class Detached(HeadFirst):
    def forward(self, samples):
        return super().forward(samples).detach()


class InPlace(HeadFirst):
    def forward(self, samples):
        features = self.body(samples)[:, self.order].exp()
        logits = self.fc(features)
        features += 1
        return logits


def normalized(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.BatchNorm1d(8), nn.Linear(8, classes))


def frozen(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, classes)).requires_grad_(False)


def head_and_frozen_body(shape, classes):
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.Linear(8, classes))
    model[1].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("model", "changes", "sentence"),
    [
        (f"{HERE}:normalized", {"batch-size": 1}, "batch normalization cannot train on a batch of"),
        (
            f"{HERE}:normalized",
            {"strategy": "kt-pfl", "kt-pfl.public-batch-size": 1},
            "two samples",
        ),
        (f"{HERE}:frozen", {}, "nothing is left to train: all parameters of the model have"),
        (f"{HERE}:head_and_frozen_body", {"strategy": "fedrep"}, "all parameters of the body have"),
        (f"{HERE}:head_and_frozen_body", {"strategy": "fedbabu"}, "parameters of the body have"),
        (f"{HERE}:Detached", {}, "its output has no gradient: forward should neither detach it"),
        (
            f"{HERE}:InPlace",
            {},
            "a training step on 16 samples fails: RuntimeError: one of the var",
        ),
    ],
)
def test_a_network_that_cannot_train_is_refused_before_any_client_works(
    model, changes, sentence, small
):
    with pytest.raises(ConfigError, match=f": {model}: .*{sentence}") as refused:
        fedkd_flwr.run({**small, "strategy": "local", "models": model, **changes})
    assert "\n" not in str(refused.value)
