"""FedGen's generator of features below the head, for server and clients."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.training.loop import build_optimizer

Generator = Mapping[str, Tensor]
"""Parameters by name; see `strategies.fedgen.FedGenState`."""


def generated(generator: Generator, classes: Tensor, noise: Tensor) -> Tensor:
    """Return features, (n, d), for classes (n,) and noise (n, e)."""
    num_classes = generator["hidden"].shape[1] - noise.shape[1]
    inputs = torch.cat([noise, functional.one_hot(classes, num_classes).to(noise.dtype)], dim=1)
    hidden = functional.linear(inputs, generator["hidden"], generator["hidden-bias"]).relu()
    return functional.linear(hidden, generator["output"], generator["output-bias"])


def draws(
    generator: Generator, shares: NDArray[np.floating], size: int, draw: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield endless batches of classes, (n,) drawn by their shares, and uniform noise, (n, e)."""
    device, exact = generator["hidden"].device, shares.astype(np.float64)
    width = generator["hidden"].shape[1] - len(shares)
    while True:
        classes = draw.choice(len(shares), size, p=exact / exact.sum())
        noise = draw.random((size, width), dtype=np.float32)
        yield torch.from_numpy(classes).to(device), torch.from_numpy(noise).to(device)


def sameness(features: Tensor, noise: Tensor) -> Tensor:
    """Return ``exp(-mean_ab |e_a - e_b|² |G_a - G_b|_1)`` of features (n, d) and noise (n, e)."""
    of_features = (features[:, None] - features).abs().mean(dim=2)
    of_noise = (noise[:, None] - noise).square().mean(dim=2)
    return (-(of_features * of_noise).mean()).exp()


def generator_loss(
    generator: Generator,
    heads: Sequence[nn.Linear],
    shares: Tensor,
    classes: Tensor,
    noise: Tensor,
    diversity: float,
) -> Tensor:
    """Return the server's loss of a generator against R heads, with shares (R, K) by class."""
    features = generated(generator, classes, noise)
    teaching = torch.stack(
        [
            (share[classes] * functional.cross_entropy(head(features), classes, reduction="none"))
            for head, share in zip(heads, shares, strict=True)
        ]
    )
    return teaching.sum(dim=0).mean() + diversity * sameness(features, noise)


def train_feature_generator(
    generator: dict[str, nn.Parameter],
    heads: Sequence[nn.Linear],
    shares: Tensor,
    batches: Iterator[tuple[Tensor, Tensor]],
    *,
    diversity: float,
    steps: int,
    learning_rate: float,
) -> None:
    """Train a generator in place by Adam; see `generator_loss`."""
    optimizer = build_optimizer("adam", generator.values(), learning_rate)
    for _ in range(steps):
        classes, noise = next(batches)
        loss = generator_loss(generator, heads, shares, classes, noise, diversity)
        optimizer.zero_grad()
        loss.backward(inputs=list(generator.values()))  # type: ignore[no-untyped-call]
        optimizer.step()
