"""Features of every architecture, their common width, and folding of the projection."""

import pytest
import torch

from fedkd_flwr.models.build import build_model
from fedkd_flwr.models.darts.genotype import SearchSpace, SupernetSettings
from fedkd_flwr.models.features import (
    feature_width,
    features,
    features_and_logits,
    fold_into,
    with_common_width,
)
from fedkd_flwr.models.layers import head_of
from fedkd_flwr.models.registry import MODELS

SPACE = SearchSpace(SupernetSettings(channels=2, cells=3, nodes=1))


def built(name):
    if name == "darts-fixed":
        return build_model(
            name, (1, 28, 28), 10, SearchSpace(SupernetSettings(channels=2, cells=3))
        )
    return build_model(name, (1, 28, 28), 10, SPACE)


@pytest.mark.parametrize("name", MODELS)
def test_the_head_turns_features_into_logits(name):
    torch.manual_seed(0)
    model, images = built(name).eval(), torch.randn(2, 1, 28, 28)
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
    model, images = with_common_width(built(name), 7).eval(), torch.randn(2, 1, 28, 28)
    assert feature_width(model) == 7
    assert features(model, images).shape == (2, 7)
    plain = fold_into(built(name), model).eval()
    assert feature_width(plain) != 7
    torch.testing.assert_close(plain(images), model(images), atol=1e-5, rtol=1e-4)


def test_a_model_of_the_common_width_is_not_changed():
    model = built("mlp")
    before = head_of(model)
    assert head_of(with_common_width(model, 100)) is before
    assert fold_into(built("mlp"), model).state_dict().keys() == model.state_dict().keys()
