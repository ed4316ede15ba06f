"""Custom data and a custom model: series of 32 steps, classified by a recurrent network.

uv run fedkd run -c dataset=examples.own_series:waves -c models=examples.own_series:Recurrent \
    -c partition=iid -c client-split=40/0/60 -c optimizer=adam -c momentum=0 \
    -c learning-rate=0.005 -c kt-pfl.distillation-learning-rate=0.005
"""

import numpy as np
from torch import Tensor, nn

STEPS = 32


def waves() -> tuple[np.ndarray, np.ndarray]:
    """Return 1200 noisy sine waves (n, 1, steps), and how many periods each has, less one."""
    generator = np.random.default_rng(0)
    labels = np.arange(1200) % 3
    time, phase = np.linspace(0, 2 * np.pi, STEPS), generator.uniform(0, 2 * np.pi, (1200, 1))
    series = np.sin((labels[:, None] + 1) * time + phase)
    return (series + generator.normal(0, 0.3, series.shape))[:, None], labels


class Recurrent(nn.Module):
    """A GRU over the steps, and a linear head on its last state."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.GRU(shape[0], 32, batch_first=True)
        self.head = nn.Linear(32, classes)

    def forward(self, series: Tensor) -> Tensor:
        """Return logits, shape (n, classes), of series (n, channels, steps)."""
        states, _ = self.body(series.transpose(1, 2))
        return self.head(states[:, -1])
