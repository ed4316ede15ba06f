"""Known architectures with stems and heads for small images, none pretrained.

ResNet, ShuffleNet and the layers of VGG are torchvision's. Builders and initial weights are as in
`fedkd_flwr.models.small`.
"""

from torch import nn
from torchvision import models
from torchvision.models import vgg

from fedkd_flwr.data.registry import Shape
from fedkd_flwr.models.layers import with_he_weights


def resnet18(shape: Shape, classes: int) -> nn.Module:
    """Build torchvision's ResNet-18 [1]_ with a 3x3 stem of stride 1.

    The max-pooling after the stem is kept. Without it a training step takes almost three times
    as long on a CPU.

    References
    ----------
    .. [1] He et al., Deep residual learning for image recognition, CVPR 2016.
    """
    model: nn.Module = models.resnet18(num_classes=classes)
    stem = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
    # The initialization that torchvision uses for all other convolutions.
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.conv1 = stem
    return model


def shufflenetv2(shape: Shape, classes: int) -> nn.Module:
    """Build torchvision's ShuffleNetV2 x1.0 [1]_ with a stem of stride 1 instead of 2.

    References
    ----------
    .. [1] Ma et al., ShuffleNet V2: practical guidelines for efficient CNN architecture
       design, ECCV 2018.
    """
    model: nn.Module = models.shufflenet_v2_x1_0(num_classes=classes)
    stem = model.get_submodule("conv1")
    assert isinstance(stem, nn.Sequential)
    stem[0] = nn.Conv2d(shape[0], 24, 3, padding=1, bias=False)
    return model


def vgg11(shape: Shape, classes: int) -> nn.Module:
    """Build VGG-11 with batch normalization [1]_, the main model of PerFed-CKT.

    The layers are torchvision's, and the head has 512 units per layer. It has 9,756,426
    parameters on 3x32x32 images of ten classes. The five poolings round up. That changes nothing
    at 32x32, and 28x28 images end at one pixel instead of none.

    References
    ----------
    .. [1] Simonyan and Zisserman, Very deep convolutional networks for large-scale image
       recognition, ICLR 2015.
    """
    return _vgg("A", shape, classes)


def vgg13(shape: Shape, classes: int) -> nn.Module:
    """Build VGG-13 with batch normalization, in the same way as `vgg11`."""
    return _vgg("B", shape, classes)


def _vgg(configuration: str, shape: Shape, classes: int) -> nn.Module:
    """Return torchvision's layers of a VGG configuration with a head of 512 units."""
    features: nn.Sequential = vgg.make_layers(vgg.cfgs[configuration], batch_norm=True)
    features[0] = nn.Conv2d(shape[0], 64, 3, padding=1)
    for layer in features:
        if isinstance(layer, nn.MaxPool2d):
            layer.ceil_mode = True
    return with_he_weights(
        nn.Sequential(
            features,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(512, 512),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(512, 512),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(512, classes),
        )
    )
