"""Known architectures with stems and heads for small images, none pretrained."""

from torch import nn
from torchvision import models
from torchvision.models import vgg

from fedkd_flwr.data.registry import Shape
from fedkd_flwr.models.layers import with_he_weights


def resnet18(shape: Shape, classes: int) -> nn.Module:
    """Build torchvision's ResNet-18 (He et al., CVPR 2016) with a 3x3 stem of stride 1.

    The max-pooling after the stem is kept: without, a step takes almost three times as long on a
    CPU.
    """
    model: nn.Module = models.resnet18(num_classes=classes)
    stem = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
    # The initialization that torchvision uses for all other convolutions.
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.conv1 = stem
    return model


def shufflenetv2(shape: Shape, classes: int) -> nn.Module:
    """Build torchvision's ShuffleNetV2 x1.0 (Ma et al., ECCV 2018) with a stem of stride 1."""
    model: nn.Module = models.shufflenet_v2_x1_0(num_classes=classes)
    stem = model.get_submodule("conv1")
    assert isinstance(stem, nn.Sequential)
    stem[0] = nn.Conv2d(shape[0], 24, 3, padding=1, bias=False)
    return model


def vgg11(shape: Shape, classes: int) -> nn.Module:
    """Build VGG-11 with batch normalization (Simonyan and Zisserman, ICLR 2015), of PerFed-CKT.

    The layers are torchvision's, and the head has 512 units per layer. Poolings round up, so that
    28x28 images end at one pixel instead of none.
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
