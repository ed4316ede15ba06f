"""Model objects kept per architecture, to be filled with one client's weights after another's.

Building a network and drawing its initial weights costs more than a small client's training.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedkd_flwr.models.build import build_model
from fedkd_flwr.models.common import Shape
from fedkd_flwr.models.darts.search_space import SearchSpace
from fedkd_flwr.models.features import with_common_width

FREE_MODELS = 64
"""Models of one architecture that a process keeps for the next client."""


@dataclass(frozen=True)
class Architecture:
    """What makes two models alike but for their numbers.

    Attributes
    ----------
    name : str
        As `fedkd_flwr.models.build.build_model` takes it.
    shape : tuple of int
        Of a sample: channels, height and width of an image.
    classes : int
        Number of classes.
    search_space : SearchSpace
        Size of ``darts`` and ``darts-fixed``.
    device : str
        Where the model lies.
    feature_width : int
        Width to which a projection brings the features that enter the head; 0 for their own.
    """

    name: str
    shape: Shape
    classes: int
    search_space: SearchSpace
    device: str
    feature_width: int = 0

    def build(self) -> nn.Module:
        """Build a model with weights from torch's global generator, on the CPU."""
        model = build_model(self.name, self.shape, self.classes, self.search_space)
        if self.feature_width:
            with_common_width(model, self.feature_width)
        # Not by assignment, which modules reserve for tensors and modules.
        vars(model)["architecture"] = self
        vars(model)["whole_numbers"] = [buffer.clone() for buffer in _whole_numbers(model)]
        return model


_FREE: dict[Architecture, list[nn.Module]] = {}


def borrow(architecture: Architecture) -> nn.Module:
    """Return a model with whatever weights it was left with; all of them have to be filled.

    What it has counted, and whatever else it holds in whole numbers, is as it was built: vectors
    of weights do not tell.
    """
    free = _FREE.get(architecture)
    if not free:
        # Whether a model is at hand must not move the draws of whoever borrows it.
        with torch.random.fork_rng(devices=[]):
            return architecture.build().to(architecture.device)
    model = free.pop()
    for buffer, as_built in zip(_whole_numbers(model), vars(model)["whole_numbers"], strict=True):
        buffer.copy_(as_built)
    return model


def _whole_numbers(model: nn.Module) -> list[Tensor]:
    return [buffer for buffer in model.buffers() if not buffer.is_floating_point()]


def give_back(model: nn.Module) -> None:
    """Let the next client of the architecture have a model; nobody may use it any more."""
    free = _FREE.setdefault(architecture_of(model), [])
    if len(free) < FREE_MODELS:
        model.zero_grad(set_to_none=True)
        free.append(model)


def clear() -> None:
    """Let go of all models that are kept."""
    _FREE.clear()


def architecture_of(model: nn.Module) -> Architecture:
    """Return the architecture that a model was built from."""
    architecture: Architecture = vars(model)["architecture"]
    return architecture
