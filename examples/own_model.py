"""A custom network beside the built-in ones.

uv run fedkd run -c models=lenet,examples.own_model:TinyNet
"""

from torch import Tensor, nn


class TinyNet(nn.Module):
    """Two strided convolutions and a linear head, for images of any size.

    Parameters
    ----------
    shape : tuple of int
        Channels, height and width of an image.
    classes : int
        Number of logits.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], 8, 5, stride=2),
            nn.ReLU(),
            nn.Conv2d(8, 16, 5, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape (n, classes)."""
        return self.head(self.body(images))
