"""Small networks of the papers: LeNet-5 and variants, an AlexNet, and a perceptron.

A builder takes the shape of an image (channels, height, width) and the number of classes. Its
network maps images (N, channels, height, width) to logits (N, classes). Initial weights come from
PyTorch's global generator. Convolutional networks use `with_he_weights`.
"""

import itertools
import math
from collections.abc import Sequence

from torch import nn

from fedkd_flwr.data.registry import Shape
from fedkd_flwr.models.layers import HalvingMaxPool2d, with_he_weights

_KERNEL = 5


def lenet(shape: Shape, classes: int) -> nn.Module:
    """Build LeNet-5 (LeCun et al., 1998), with ReLU and max-pooling, padded to 32x32."""
    channels, height, width = shape
    above, beside = (math.ceil(max(0, 32 - side) / 2) for side in (height, width))
    padded = (channels, height + 2 * above, width + 2 * beside)
    return nn.Sequential(
        nn.ZeroPad2d((beside, beside, above, above)), _convolutional(padded, classes)
    )


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Build the convolutional network of FedAvg (McMahan et al., AISTATS 2017).

    Two padded 5x5 convolutions of 32 and 64 channels, each with 2x2 max-pooling, then 512 hidden
    units: 1,663,370 parameters on 1x28x28 images of ten classes.
    """
    return _convolutional(shape, classes, channels=(32, 64), hidden=(512,), padding=2)


def cnn_ckt(shape: Shape, classes: int) -> nn.Module:
    """Build the small network of PerFed-CKT (Cho et al., 2021, appendix E).

    Hidden layers of 120, 100, 84 and 50 units. The paper does not specify the convolutions; they
    are LeNet-5's, 5x5 with 6 and 16 channels.
    """
    return _convolutional(shape, classes, hidden=(120, 100, 84, 50))


def cnn_persfl(shape: Shape, classes: int) -> nn.Module:
    """Build the CIFAR-10 network of PersFL (Divi et al., 2021, section 5).

    Hidden layers of 120 and 84 units. The paper's fully connected "400" is taken as the 16x5x5
    features after pooling both convolutions of 32x32 images.
    """
    return _convolutional(shape, classes)


def alexnet(shape: Shape, classes: int) -> nn.Module:
    """Build an AlexNet (Krizhevsky, 2014) for small images, about 2.6 million parameters.

    Channels, kernels past the first and overlapping pooling are those of torchvision's AlexNet. The
    stem is 3x3 with stride 2, pooling is padded, and the head is a global mean and 256 units per
    layer. Batch normalization takes the place of dropout: without, the network hardly trains in
    batches of eight.
    """
    pooling = (3, 2, 1)  # size, stride, padding
    return with_he_weights(
        nn.Sequential(
            *_normalized(nn.Conv2d(shape[0], 64, 3, stride=2, padding=1)),
            nn.MaxPool2d(*pooling),
            *_normalized(nn.Conv2d(64, 192, 5, padding=2)),
            nn.MaxPool2d(*pooling),
            *_normalized(nn.Conv2d(192, 384, 3, padding=1)),
            *_normalized(nn.Conv2d(384, 256, 3, padding=1)),
            *_normalized(nn.Conv2d(256, 256, 3, padding=1)),
            nn.MaxPool2d(*pooling),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            *_fully_connected((256, 256, 256, classes)),
        )
    )


def _normalized(convolution: nn.Conv2d) -> tuple[nn.Module, ...]:
    return convolution, nn.BatchNorm2d(convolution.out_channels), nn.ReLU(inplace=True)


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Build the MNIST network of PersFL, section 5: one hidden layer of 100 ReLU units."""
    return nn.Sequential(nn.Flatten(), *_fully_connected((math.prod(shape), 100, classes)))


def _convolutional(
    shape: Shape,
    classes: int,
    channels: Sequence[int] = (6, 16),
    hidden: Sequence[int] = (120, 84),
    padding: int = 0,
) -> nn.Module:
    """Return a LeNet: convolution, ReLU and pooling in turn, then fully connected layers."""
    previous, height, width = shape
    layers: list[nn.Module] = []
    for current in channels:
        layers += [
            nn.Conv2d(previous, current, _KERNEL, padding=padding),
            nn.ReLU(),
            HalvingMaxPool2d(),
        ]
        height = (height + 2 * padding - _KERNEL + 1) // 2
        width = (width + 2 * padding - _KERNEL + 1) // 2
        previous = current
    features = previous * height * width
    layers += [nn.Flatten(), *_fully_connected((features, *hidden, classes))]
    return with_he_weights(nn.Sequential(*layers))


def _fully_connected(widths: Sequence[int]) -> list[nn.Module]:
    """Return linear layers from width to width, with a ReLU between each two."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return layers[:-1]
