"""FedTGP's generator of global prototypes and its loss, for the server."""

from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.nn import functional

from fedkd_flwr.training.optimizers import SGD


def generated_prototypes(generator: Mapping[str, Tensor]) -> Tensor:
    """Return the global prototypes g(e), shape (K, d); see `strategies.fedtgp.FedTGPState`."""
    hidden = (generator["vectors"] @ generator["hidden"].T + generator["hidden-bias"]).relu()
    return hidden @ generator["output"].T + generator["output-bias"]


def margin_loss(prototypes: Tensor, sent: Tensor, classes: Tensor, margin: float) -> Tensor:
    """Return the contrastive loss of the prototypes that one client sent, their mean.

    Parameters
    ----------
    prototypes, sent : Tensor
        Shapes (K, d) and (M, d).
    classes : Tensor
        Shape (M,), the classes of the prototypes sent.
    margin : float
        Added to the distance to the correct prototype.
    """
    # The square root has no gradient at 0.
    distances = ((sent[:, None] - prototypes[None]).square().sum(dim=-1) + 1e-12).sqrt()
    margins = margin * functional.one_hot(classes, len(prototypes))
    return functional.cross_entropy(-(distances + margins), classes)


def train_prototype_generator(
    generator: Mapping[str, Tensor],
    sent: Sequence[tuple[Tensor, Tensor]],
    *,
    margin: float,
    epochs: int,
    learning_rate: float,
) -> None:
    """Train a generator in place, with one step of gradient descent per client and epoch.

    The parameters are those of `strategies.core.server_models.ServerModels.train_prototypes`.
    """
    optimizer = SGD(generator.values(), learning_rate)
    for _ in range(epochs):
        for own, classes in sent:
            optimizer.zero_grad()
            loss = margin_loss(generated_prototypes(generator), own, classes, margin)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
