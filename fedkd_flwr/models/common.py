"""What the architectures share: image shapes, the check on them, and first weights."""

from torch import nn

Shape = tuple[int, ...]
"""Of a sample: channels, height and width of an image; own data may have any."""


def require_side(name: str, shape: Shape, smallest: int) -> None:
    """Refuse images that an architecture would shrink to nothing.

    Parameters
    ----------
    name : str
        Name of the model, for the message.
    shape : tuple of int
        Channels, height and width.
    smallest : int
        Smallest height and width that the model takes.

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
    """Draw the hidden layers of a plain network as He et al. [1]_ do, and return the network.

    The papers do not say how their networks start. With torch's own draw the signal fades
    from layer to layer, and with plain SGD at the papers' rates a network of six layers
    without batch normalisation does not leave chance. The output layer keeps torch's draw,
    which is smaller, so that the first predictions are not confident.

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
