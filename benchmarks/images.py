"""Random images of the shape of MNIST, so that no benchmark downloads data."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

SHAPE, CLASSES = (1, 28, 28), 10


def random_samples(count: int) -> tuple[Tensor, Tensor]:
    """Draw random images in [-1, 1] and random classes."""
    return torch.rand(count, *SHAPE) * 2 - 1, torch.randint(0, CLASSES, (count,))


def settings_for(model: str, clients: int, samples: int, **further: Any) -> dict[str, Any]:
    """Return settings for clients of equal size, on random images and one CPU thread.

    Parameters
    ----------
    model : str
        Architecture of every client.
    clients : int
        Number of clients.
    samples : int
        Images in all, each with a random class.
    **further
        More settings.
    """
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (samples, *SHAPE), dtype=np.uint8)
    return {
        "dataset": (pixels, generator.integers(0, CLASSES, samples)),
        "partition": "iid",
        "client-split": "75/0/25",
        "models": model,
        "num-clients": clients,
        "device": "cpu",
        "torch-threads": 1,
        **further,
    }
