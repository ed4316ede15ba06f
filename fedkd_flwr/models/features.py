"""A model's features, the input of its head, and a common feature width for all models."""

from functools import cache

import torch
from torch import Tensor, nn

from fedkd_flwr.data.registry import Shape
from fedkd_flwr.models.build import build_model
from fedkd_flwr.models.genotype import SupernetSettings
from fedkd_flwr.models.layers import head_of, mark_head
from fedkd_flwr.models.settings import ModelSettings

WIDTH_OF_PROJECTIONS = 64
"""Features that enter the head if they have to be the same, and models differ in their own."""


def feature_width(model: nn.Module) -> int:
    """Return d, the number of features of a model."""
    return head_of(model).in_features


def features_and_logits(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return a model's features, (n, d), and its logits, (n, K), in one pass."""
    entered: list[Tensor] = []
    hook = head_of(model).register_forward_pre_hook(lambda head, inputs: entered.append(inputs[0]))
    try:
        logits: Tensor = model(images)
    finally:
        hook.remove()
    return entered[0], logits


def features(model: nn.Module, images: Tensor) -> Tensor:
    """Return a model's features, (n, d), with gradients if they are enabled."""
    return features_and_logits(model, images)[0]


class FeatureExtractor(nn.Module):
    """A model that outputs its features; the weights are shared with it, not copied."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return features, shape (n, d)."""
        return features(self.model, images)


def with_common_width(model: nn.Module, width: int) -> nn.Module:
    """Give a model a common feature width, by a linear projection before its head, in place."""
    head = head_of(model)
    if head.in_features == width:
        return model
    projected = nn.Sequential(
        nn.Linear(head.in_features, width), nn.Linear(width, head.out_features)
    )
    name = _name_of_head(model)
    model.set_submodule(name, projected)
    if "name_of_head" in vars(model):
        mark_head(model, f"{name}.1")
    return model


def common_width(models: ModelSettings, shape: Shape, classes: int) -> int:
    """Return the set width, the models' own if they agree, or `WIDTH_OF_PROJECTIONS`."""
    if models.feature_width:
        return models.feature_width
    widths = own_widths(models.models, shape, classes, models.search_space)
    return max(widths) if len(widths) == 1 else WIDTH_OF_PROJECTIONS


def narrowest_width(models: ModelSettings, shared: str, shape: Shape, classes: int) -> int:
    """Return the smallest number of features of the run's models and of a shared one."""
    names = *models.models, shared
    return models.feature_width or min(own_widths(names, shape, classes, models.search_space))


@cache
def own_widths(
    names: tuple[str, ...], shape: Shape, classes: int, search_space: SupernetSettings
) -> frozenset[int]:
    """Return the numbers of features of some architectures, without a projection."""
    with torch.random.fork_rng(devices=[]):
        built = [build_model(name, shape, classes, search_space) for name in dict.fromkeys(names)]
    return frozenset(map(feature_width, built))


@torch.no_grad()
def fold_into(plain: nn.Module, model: nn.Module, head: nn.Linear | None = None) -> nn.Module:
    """Write a model into one of its plain architecture, any projection into its head.

    Two consecutive linear layers equal one, ``W_2 (W_1 h + b_1) + b_2``. `head` replaces the
    model's own.
    """
    name, name_of_last = _name_of_head(plain), _name_of_head(model)
    tensors = dict(model.state_dict())
    if head is not None:
        tensors |= head.state_dict(prefix=f"{name_of_last}.")
    if name_of_last != name:
        inner, inner_bias = tensors.pop(f"{name}.0.weight"), tensors.pop(f"{name}.0.bias")
        outer, outer_bias = tensors.pop(f"{name}.1.weight"), tensors.pop(f"{name}.1.bias")
        # Weights have full precision, whatever the precision of the networks.
        with torch.autocast(outer.device.type, enabled=False):
            tensors[f"{name}.weight"] = outer @ inner
            tensors[f"{name}.bias"] = outer @ inner_bias + outer_bias
    plain.load_state_dict(tensors)
    return plain


def _name_of_head(model: nn.Module) -> str:
    head = head_of(model)
    return next(name for name, part in model.named_modules() if part is head)
