"""Helpers for architectures: image shapes, a check of them, and initial weights."""

from torch import nn

Shape = tuple[int, ...]
"""Of a sample: channels, height and width of an image; own data may have any."""


def require_side(name: str, shape: Shape, smallest: int) -> None:
    """Refuse images that are too small for an architecture.

    Parameters
    ----------
    name : str
        Name of the model, for the error message.
    shape : tuple of int
        Channels, height and width.
    smallest : int
        Smallest height and width for the model.

    Raises
    ------
    ValueError
        If the height or the width is below `smallest`.
    """
    _, height, width = shape
    if min(height, width) < smallest:
        raise ValueError(
            f"model {name!r} needs images of at least {smallest}x{smallest} pixels, "
            f"got {height}x{width}"
        )


def with_he_weights(model: nn.Module) -> nn.Module:
    """Initialize the hidden layers of a plain network like He et al. [1]_, and return the network.

    The papers do not state their initialization. With PyTorch's default the signal fades from
    layer to layer. With plain SGD at the papers' learning rates, a network of six layers without
    batch normalization then stays at chance level. The output layer keeps PyTorch's smaller
    default, so that the first predictions are not confident.

    Parameters
    ----------
    model : nn.Module
        A network whose last linear layer is the output. Changed in place.

    Returns
    -------
    nn.Module
        The same network.

    References
    ----------
    .. [1] He et al., Delving deep into rectifiers, ICCV 2015.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return model
