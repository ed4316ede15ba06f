"""Networks of KT-pFL's Table 1 with PyTorch's default initialization instead of He's."""

from torch import nn

from fedkd_flwr.data.registry import Shape
from fedkd_flwr.models import small


def alexnet(shape: Shape, classes: int) -> nn.Module:
    """Build the project's AlexNet with PyTorch's default initialization."""
    return _drawn_anew(small.alexnet(shape, classes))


def lenet(shape: Shape, classes: int) -> nn.Module:
    """Build the project's LeNet with PyTorch's default initialization."""
    return _drawn_anew(small.lenet(shape, classes))


def _drawn_anew(network: nn.Module) -> nn.Module:
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.reset_parameters()
    return network
