"""Models: shapes, published parameter counts, gradients, errors; and who gets which."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedkd_flwr
from fedkd_flwr.models.build import build_model, num_parameters
from fedkd_flwr.models.features import (
    feature_width,
    features,
    features_and_logits,
    fold_into,
    with_common_width,
)
from fedkd_flwr.models.genotype import SupernetSettings
from fedkd_flwr.models.layers import head_of, layers_of
from fedkd_flwr.models.registry import MODELS, assign_models

GRAY = (1, 28, 28)
COLOR = (3, 32, 32)
SMALL_SUPERNET = SupernetSettings(channels=4, cells=3, nodes=2)
"""test_darts.py has the paper's size."""

FASHION = Path(__file__).parents[2] / "shared/data/zalando-datasets/fashion_mnist"


def built(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    return build_model(name, shape, classes, SMALL_SUPERNET if name == "darts" else None)


@pytest.mark.parametrize("shape", [GRAY, COLOR])
@pytest.mark.parametrize("name", MODELS)
def test_two_images_train_every_parameter(name: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    model = built(name, shape, 10).train()
    # A dropped or dead unit on one path must not hide that the path is there.
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    logits = model(torch.randn(2, *shape))
    assert logits.shape == (2, 10)
    assert logits.dtype == torch.float32
    nn.functional.cross_entropy(logits, torch.tensor([0, 1])).backward()  # type: ignore[no-untyped-call]
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize(("shape", "classes"), [(GRAY, 62), (COLOR, 2), ((2, 33, 40), 5)])
@pytest.mark.parametrize("name", MODELS)
def test_one_logit_per_class(name: str, shape: tuple[int, int, int], classes: int) -> None:
    model = built(name, shape, classes).eval()
    with torch.inference_mode():
        assert model(torch.zeros(3, *shape)).shape == (3, classes)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("vgg11", COLOR, 9_756_426),  # PerFed-CKT, table 1
        ("vgg13", COLOR, 9_756_426 + (64 * 64 * 9 + 3 * 64) + (128 * 128 * 9 + 3 * 128)),
        ("cnn", GRAY, 1_663_370),  # McMahan et al., section 3
        ("lenet", (1, 32, 32), 61_706),
        ("cnn-persfl", COLOR, 456 + 2416 + 401 * 120 + 121 * 84 + 85 * 10),
        ("cnn-ckt", COLOR, 456 + 2416 + 401 * 120 + 121 * 100 + 101 * 84 + 85 * 50 + 51 * 10),
        ("mlp", GRAY, 785 * 100 + 101 * 10),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, int, int], expected: int) -> None:
    assert num_parameters(build_model(name, shape, 10)) == expected
    assert num_parameters(nn.BatchNorm2d(7)) == 14  # buffers do not count


def test_lenet_pads_small_images_only() -> None:
    small, large = build_model("lenet", GRAY, 10), build_model("lenet", (1, 32, 32), 10)
    large.load_state_dict(small.state_dict())
    image = torch.randn(2, *GRAY)
    padded = nn.functional.pad(image, (2, 2, 2, 2))
    torch.testing.assert_close(small(image), large(padded))


@pytest.mark.parametrize("name", ["vgg11", "vgg13"])
def test_vgg_sees_the_last_row_of_small_images(name: str) -> None:
    # 28 -> 14 -> 7 -> 3 with rounding down would lose the bottom of the image.
    torch.manual_seed(0)
    model = build_model(name, GRAY, 10).eval()
    image = torch.randn(1, *GRAY, requires_grad=True)
    model(image).sum().backward()
    assert image.grad is not None
    assert image.grad[0, 0, -1].abs().sum() > 0


SMALLEST = {"alexnet": 8, "resnet18": 8, "shufflenetv2": 8, "vgg11": 16, "vgg13": 16, "cnn": 4}
SMALLEST |= {"cnn-ckt": 16, "cnn-persfl": 16}


@pytest.mark.parametrize(("name", "side"), SMALLEST.items())
def test_smallest_images(name: str, side: int) -> None:
    model = build_model(name, (1, side, side), 3).train()
    assert model(torch.randn(2, 1, side, side)).shape == (2, 3)
    with pytest.raises(
        ValueError, match=f"'{name}' needs .*{side}x{side} pixels, got 32x{side - 1}"
    ):
        build_model(name, (1, 32, side - 1), 3)


def test_build_model_errors() -> None:
    with pytest.raises(ValueError, match=r"model 'lenet5' is unknown; did you mean lenet"):
        build_model("lenet5", GRAY, 10)
    with pytest.raises(ValueError, match=r"\(channels, height, width\).*got \(28, 28\)"):
        build_model("lenet", (28, 28), 10)
    with pytest.raises(ValueError, match=r"each at least 1, got \(0, 28, 28\)"):
        build_model("mlp", (0, 28, 28), 10)
    with pytest.raises(ValueError, match="at least 2 classes, got 1"):
        build_model("mlp", GRAY, 1)


@pytest.mark.parametrize("name", MODELS)
def test_seed_fixes_the_weights(name: str) -> None:
    models = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        models.append(built(name, GRAY, 10))
    first, same, other = (nn.utils.parameters_to_vector(model.parameters()) for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("name", ["lenet", "alexnet", "cnn", "cnn-ckt", "cnn-persfl"])
def test_plain_networks_start_with_a_signal(name: str) -> None:
    # Two unlike images must lead to unlike logits, or training starts from nothing; under
    # torch's own draw cnn-ckt tells them apart by about 0.002 and stays at chance for long.
    torch.manual_seed(0)
    model = build_model(name, GRAY, 10).eval()
    with torch.inference_mode():
        logits = model(torch.randn(64, *GRAY))
    assert logits.std(dim=0).mean() > 0.05
    # And not so unlike that the first loss is twice log(10), that of a uniform guess.
    assert nn.functional.cross_entropy(logits, torch.arange(64) % 10) < 4.6


def test_cyclic() -> None:
    assert assign_models(["a", "b", "c"], "cyclic", 5) == ["a", "b", "c", "a", "b"]


def test_blocks() -> None:
    assert assign_models(["a", "b"], "blocks", 4) == ["a", "a", "b", "b"]
    for models, clients in itertools.product(["a", "ab", "abc", "abcde"], range(1, 13)):
        assigned = assign_models(list(models), "blocks", clients)
        counts = [assigned.count(model) for model in models]
        assert assigned == sorted(assigned)
        assert len(assigned) == clients
        assert max(counts) - min(counts) <= 1


def test_by_size_repeats_and_follows_the_seed() -> None:
    sizes = list(range(30))
    draws = [assign_models(["a", "b", "c"], "by-size", 30, sizes, seed) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_by_size_probabilities() -> None:
    # Of four clients the ranks are 1/8, 3/8, 5/8, 7/8, smallest first, and with two models
    # the larger has that probability; 2,000 draws put 4 standard errors at most at 0.045.
    sizes = [30, 10, 40, 20]
    draws = np.array(
        [assign_models(["large", "small"], "by-size", 4, sizes, seed) for seed in range(2_000)]
    )
    expected = np.array([5, 1, 7, 3]) / 8
    np.testing.assert_allclose((draws == "large").mean(axis=0), expected, atol=0.045)


@pytest.mark.parametrize("rule", ["cyclic", "blocks", "by-size"])
def test_one_model_goes_to_all(rule: str) -> None:
    assert assign_models(["a"], rule, 3, sizes=[1, 0, 5]) == ["a"] * 3


def test_layers_hold_all_numbers_of_a_model_and_a_model_without_linear_layer_has_no_head() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Sequential(nn.BatchNorm2d(2)))
    assert [type(layer) for layer in layers_of(model)] == [nn.Conv2d, nn.BatchNorm2d]
    with pytest.raises(ValueError, match="no linear layer"):
        head_of(model)


# ---- Features ------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_head_turns_features_into_logits(name):
    torch.manual_seed(0)
    model, images = built(name, GRAY, 10).eval(), torch.randn(2, *GRAY)
    assert layers_of(model)[-1] is head_of(model)
    entered, logits = features_and_logits(model, images)
    assert entered.shape == (2, feature_width(model))
    torch.testing.assert_close(head_of(model)(entered), logits)
    torch.testing.assert_close(model(images), logits)
    entered.sum().backward()
    assert head_of(model).weight.grad is None
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("name", ["mlp", "lenet", "shufflenetv2", "darts"])
def test_a_projection_brings_a_model_to_a_width_and_folds_into_its_head(name):
    torch.manual_seed(0)
    model, images = with_common_width(built(name, GRAY, 10), 7).eval(), torch.randn(2, *GRAY)
    assert feature_width(model) == 7
    assert features(model, images).shape == (2, 7)
    plain = fold_into(built(name, GRAY, 10), model).eval()
    assert feature_width(plain) != 7
    torch.testing.assert_close(plain(images), model(images), atol=1e-5, rtol=1e-4)


def test_a_model_of_the_common_width_is_not_changed():
    model = built("mlp", GRAY, 10)
    before = head_of(model)
    assert head_of(with_common_width(model, 100)) is before
    plain = fold_into(built("mlp", GRAY, 10), model)
    assert plain.state_dict().keys() == model.state_dict().keys()


def accuracy_of_alexnet(steps: int, folder: Path, **data: str | int) -> float:
    """Return the accuracy after some steps on a client's data, with default settings."""
    one = {"strategy": "local", "models": "alexnet", "partition": "iid", "num-clients": 1}
    settings = {**one, "num-server-rounds": 1, "local-iterations": steps, "public-dataset": "none"}
    run = fedkd_flwr.run({**settings, **data, "device": "cpu"}, output_dir=folder / "run")
    return run.summary["last_round"]["accuracy_mean"]


def test_alexnet_trains_with_default_settings(tmp_path: Path) -> None:
    assert accuracy_of_alexnet(60, tmp_path) > 0.6


@pytest.mark.slow
@pytest.mark.skipif(not FASHION.exists(), reason="needs Fashion-MNIST beside the project")
def test_alexnet_trains_on_fashion_mnist(tmp_path: Path) -> None:
    data = {"dataset": "fashion-mnist", "data-root": str(FASHION.parents[1]), "max-samples": 8000}
    assert accuracy_of_alexnet(200, tmp_path, **data) > 0.6
