"""Base classes of clients that train the shared model beside their own."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, PersonalClient
from fedkd_flwr.models.model_pool import (
    SHARED_DRAW,
    Architecture,
    architecture_of,
    borrowed,
    common_weights,
    fill_model,
)
from fedkd_flwr.models.vectors import fill_from_vectors
from fedkd_flwr.training.loop import seeded
from fedkd_flwr.training.losses import kl_to_teacher
from strategies.parameters import SharedModelSettings


class Pair(nn.Module):
    """A client's private model and its copy of the shared one, trained together; not copied."""

    def __init__(self, private: nn.Module, shared: nn.Module) -> None:
        super().__init__()
        self.private, self.shared = private, shared
        # Pairs with equal architectures are trained as a cohort.
        self.architecture = architecture_of(private), architecture_of(shared)


def taught(logits: Tensor, labels: Tensor, teacher: Tensor, weight: float) -> Tensor:
    """Return ``weight * CE + (1 - weight) * KL(teacher || student)``, for the student only."""
    predictions = functional.softmax(teacher.detach(), dim=1)
    imitation = kl_to_teacher(logits, predictions, temperature=1.0)
    return weight * functional.cross_entropy(logits, labels) + (1 - weight) * imitation


def shared_parameters(
    client: PersonalClient, model: nn.Module, takes: type[nn.Module]
) -> list[nn.Parameter]:
    """Return the parameters of the shared part of a model, which the server replaces."""
    if not isinstance(model, takes):
        raise TypeError(
            f"train_locally of {type(client).__name__} takes a {takes.__name__}, not a "
            f"{type(model).__name__}: pass one, or `replaced=`, the parameters whose momentum "
            "is not kept"
        )
    return list(model.get_submodule("shared").parameters())


class SharedModelClient(PersonalClient):
    """A client that trains a copy of the shared model together with its own."""

    settings: SharedModelSettings

    def replaced_parameters(self, model: nn.Module) -> Collection[nn.Parameter]:
        """Return the parameters of the shared model of a pair."""
        return shared_parameters(self, model, Pair)

    @property
    def architectures(self) -> tuple[Architecture, ...]:
        """The architectures of the client's own model and of the shared one."""
        (own,) = super().architectures
        return own, replace(own, name=self.settings.shared_model)

    @contextmanager
    def shared_model(self, received: Arrays) -> Iterator[nn.Module]:
        """Provide the shared model as it was received."""
        with borrowed(self.architectures[1]) as model:
            fill_from_vectors(model, received)
            yield model


class EnsembleClient(SharedModelClient):
    """A client that is evaluated with its own model and the shared one together."""

    @cached_property
    def shared(self) -> nn.Module:
        """The shared model, with the initial weights that the server draws until it is filled."""
        architecture, seed = self.architectures[1], self.session.run.plan.seed
        model = self.session.borrow(architecture)
        fill_model(model, common_weights(architecture, seed, self._drawn, SHARED_DRAW))
        return model

    def _drawn(self) -> nn.Module:
        with seeded("cpu", self.session.run.plan.seed, SHARED_DRAW):
            return self.architectures[1].build().to(self.device)
