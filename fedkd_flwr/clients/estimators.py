"""Clients whose model is an estimator: refits instead of gradient steps."""

import math
from dataclasses import replace
from functools import cache, cached_property, partial
from logging import WARNING
from typing import Any

import torch
from torch import Tensor, nn

from fedkd_flwr.clients.base import Arrays, Evaluated, PersonalClient, Session, TrainReply
from fedkd_flwr.clients.policy import PolicyError
from fedkd_flwr.config import RunConfig, methods_with
from fedkd_flwr.models.estimators import EstimatorModel, new_estimator, try_estimator, weighted_rows
from fedkd_flwr.models.model_pool import Architecture
from fedkd_flwr.training.losses import kl_to_teacher
from strategies.core.flower import log
from strategies.core.metrics import MOVED_PRIVATE, MOVED_PUBLIC
from strategies.core.randomness import random_generator

LARGEST_SEED = 2**31
"""Seeds of estimators are below: NumPy's generators of that kind take no larger ones."""


def refusal(run: RunConfig) -> str:
    """Return in one sentence why the clients of a run cannot have estimators; empty if they can."""
    if not run.method.record.takes_estimators:
        return (
            f"{run.strategy} needs networks, and estimators exchange soft predictions alone; set "
            f"strategy to one of {', '.join(methods_with('takes_estimators'))}, or models to "
            "networks"
        )
    if run.dp_sgd.noise_multiplier:
        return "estimators have no gradients; set dp-sgd-noise-multiplier to 0"
    if run.models.feature_width:
        return "estimators have no features; set feature-width to 0"
    return ""


def require_estimator(run: RunConfig, name: str, missing: bool = False) -> None:
    """Refuse an estimator that a run cannot have, by a fit on random numbers."""
    if reason := refusal(run):
        raise ValueError(f"{name}: {reason}")
    create = partial(new_estimator, name, run.models.estimators.options_of(name))
    if not try_estimator(name, create, math.prod(run.data.image_shape), missing):
        log(
            WARNING,
            "%s: two fits on the same samples differ, so that results cannot be repeated. Draw by "
            "its parameter random_state, which the run sets from its seed",
            name,
        )


class EstimatorClient(PersonalClient):
    """What a client does differently if its model is an estimator.

    Each training fits a new estimator on all private samples. Distillation adds the public samples
    with the teacher's soft labels, as weighted rows.
    """

    def __init__(self, session: Session) -> None:
        if reason := refusal(session.run):
            raise PolicyError(reason)
        super().__init__(session)

    # ---- The model -----------------------------------------------------------------------

    @cached_property
    def model(self) -> EstimatorModel:
        """The client's stored estimator, or a new one."""
        model = self.new_model()
        if stored := self.session.stored_model:
            model.load_state_dict(stored)
        return model

    def new_model(self) -> EstimatorModel:
        """Return an estimator that is not fitted. Its seed is the same in all rounds."""
        name, settings = self.session.model_name, self.session.run.models.estimators
        draws = random_generator(self.session.run.plan.seed, "estimator", self.partition_id)
        options = {} if self.session.node.model else settings.options_of(name)
        create = partial(new_estimator, name, options, int(draws.integers(LARGEST_SEED)))
        return EstimatorModel(create, self.data.classes)

    @property
    def architectures(self) -> tuple[Architecture, ...]:
        """No network."""
        return ()

    # ---- Training ------------------------------------------------------------------------

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train as the method does. Distances between parameters are not reported."""
        reply = super().train(received, server_round, phase)
        for metric in (MOVED_PRIVATE, MOVED_PUBLIC):
            reply.metrics.pop(metric.name, None)
        return reply

    def train_locally(self, server_round: int, *_: Any, **__: Any) -> float:
        """Fit on private samples, unless a distillation has done so; return their mean loss."""
        if not self.model.was_fitted:
            self.refit()
        logits = self.predict(self.model, self.data.train_images)
        return float(nn.functional.cross_entropy(logits, self.data.train_labels))

    def distill(self, teacher: Tensor, server_round: int) -> float:
        """Fit on private and public samples of the last round; return the distillation loss.

        The soft labels are the predictions p with ``softmax(log(p) / T) = teacher``, at which the
        distillation loss of networks is smallest.
        """
        settings, images = self.settings, self.session.public_images(server_round - 1)
        self.refit(images, torch.softmax(settings.temperature * teacher.log(), dim=1))
        logits = self.predict(self.model, images)
        return float(kl_to_teacher(logits, teacher, settings.temperature, settings.t_squared))

    def co_distill(
        self, images: Tensor, centroid: Tensor, server_round: int, factor: float = 1.0
    ) -> float:
        """Fit on private samples and on public ones with the centroid (PerFed-CKT)."""
        self.refit(images, centroid, factor)
        return self.train_locally(server_round)

    def refit(
        self, public: Tensor | None = None, teacher: Tensor | None = None, factor: float = 1.0
    ) -> None:
        """Fit a new estimator on private samples, and on public ones with a teacher (P, K)."""
        data, settings = self.data, self.session.run.models.estimators
        weights = torch.full_like(data.train_labels, settings.private_weight, dtype=torch.float32)
        rows = [(data.train_images, data.train_labels, weights)]
        if public is not None and teacher is not None:
            samples, labels, shares = weighted_rows(public, teacher, settings.top_classes)
            rows.append((samples, labels, shares * settings.public_weight * factor))
        try:
            self.model.fit(*map(torch.cat, zip(*rows, strict=True)))
        except Exception as error:
            self._hide(error, "Its model is as before")

    def predict(self, model: nn.Module, images: Tensor) -> Tensor:
        """Return a model's logits (P, K), equal ones where it fails and the node hides that."""
        try:
            return super().predict(model, images)
        except Exception as error:
            self._hide(error, "Its predictions are uniform where it fails")
            return self._predicted_in_parts(model, images)

    def _predicted_in_parts(self, model: nn.Module, images: Tensor) -> Tensor:
        """Return logits after a failure. A sample that causes it changes those of no other."""
        if len(images) < 2:
            return torch.zeros((len(images), self.data.classes), device=self.device)
        parts = []
        for half in images.tensor_split(2):
            try:
                parts.append(super().predict(model, half))
            except Exception:
                parts.append(self._predicted_in_parts(model, half))
        return torch.cat(parts)

    def _hide(self, error: Exception, outcome: str) -> None:
        """Tell the operator alone of what an estimator raises, or raise it where nothing is hidden.

        That may be anything, and depend on single samples, such as on categories never seen.
        """
        if not self.session.policy.hides_divergence:
            raise error
        log(WARNING, "Client %d: %s. %s.", self.partition_id, error, outcome)

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Evaluate as the method does, but leave the estimator as it was fitted."""
        return replace(super().evaluated(received, server_round), fine_tuned_by=None)


@cache
def estimator_client(client: type[PersonalClient]) -> type[PersonalClient]:
    """Return a method's client for estimators, derived from its own."""
    members: dict[str, Any] = {"__module__": __name__}
    return type(f"Estimator{client.__name__}", (EstimatorClient, client), members)
