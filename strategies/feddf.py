"""FedDF: average the models of each architecture, then distill the ensemble of all clients.

The server averages the received models of each architecture, weighted by training samples. Then it
trains each average x by ``KL(softmax(mean_k z_k) || softmax(z_x))`` on unlabeled samples, with the
logits z_k of all received models of any architecture. With 0 steps this is FedAvg.

pFedDF is the baseline of Zhang et al., *Parameterized Knowledge Transfer for Personalized Federated
Learning*, NeurIPS 2021 (§5.1): clients fine-tune FedDF's models on their private data.

Differences from the paper
--------------------------
- Adam takes a fixed number of steps at a constant step size. The paper uses a cosine schedule over
  up to 10,000 steps and early stopping on validation data, which this server does not have.
- Each round distills on P samples of the public pool, so that every model predicts on them once.
- An architecture without replies is distilled too, starting from its last weights.
- A model with predictions that are not finite is excluded from the ensemble. The paper can also
  drop models no better than chance, by validation data.
- Fine-tuned models are evaluated in every evaluated round, not only after the last. They stay on
  the clients, and FedDF continues from its global models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from logging import WARNING
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.flower import log
from strategies.core.method_record import Need, Paper
from strategies.core.mixing import MIXINGS, Mix, weighted_mean
from strategies.core.plan import Settings
from strategies.core.probabilities import softmax
from strategies.core.replies import Arrays, ExpectedArray, Reply
from strategies.core.settings_groups import ANY_ON_NODES, OnNodes, SearchRange
from strategies.core.state import named_arrays
from strategies.kt_pfl import PAPER
from strategies.method import ServerModels
from strategies.parameters import Model, ParameterState, ParameterStrategy, expected_model


class FedDFSettings(Settings):
    """Settings of the distillation on the server."""

    table = "feddf"
    distillation_steps: Annotated[int, ANY_ON_NODES] = Field(default=500, ge=0)
    """Steps of Adam per round and architecture; 0 is FedAvg."""
    distillation_batch_size: Annotated[int, ANY_ON_NODES] = Field(default=128, ge=1)
    """Public samples per step of Adam on the server."""
    distillation_learning_rate: Annotated[
        float, SearchRange(0.00003, 0.01, log=True), ANY_ON_NODES
    ] = Field(default=0.001, gt=0)
    """Step size of Adam on the server."""


def ensemble_logits(
    logits: dict[int, NDArray[Any]], mix: Mix = weighted_mean
) -> NDArray[np.float32] | None:
    """Return the mean of the clients' finite logits (P, K), or what another rule makes of them.

    The rule is one of `strategies.core.mixing`, with equal weights. None if no client has finite
    logits.
    """
    usable = [z.astype(np.float64) for z in logits.values() if np.isfinite(z).all()]
    if not usable:
        return None
    equal = np.full((1, len(usable)), 1 / len(usable))
    return mix(equal, np.stack(usable))[0].astype(np.float32)


@dataclass(frozen=True)
class FedDFState(ParameterState):
    """One global model per architecture; `model` is empty."""

    models: dict[str, Model]
    """The global models, by architecture."""


class FedDF(ParameterStrategy):
    """One global model per architecture, each distilled from the ensemble of all clients."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="T. Lin, L. Kong, S. U. Stich, M. Jaggi",
            title="Ensemble Distillation for Robust Model Fusion in Federated Learning",
            venue="NeurIPS",
            year=2020,
            arxiv="2006.07242",
        ),
        needs=(Need.PUBLIC_DATA_ON_SERVER,),
        settings_type=FedDFSettings,
        dp_sgd=True,
        trains_new_clients=False,
    )
    settings: FedDFSettings
    state: FedDFState
    server_models: ServerModels

    def begin(self, initial: Arrays) -> FedDFState:
        models = self.server_models
        return FedDFState({}, {name: dict(models.initial(name=name)) for name in models.names})

    def architecture_of(self, partition_id: int) -> str:
        """Return a client's architecture, or the first one if it reports an unknown one."""
        names, claimed = self.server_models.names, self.round.clients[partition_id].model
        return claimed if claimed in names else names[0]

    def model_for(self, partition_id: int) -> Model:
        """Return the global model of the client's architecture."""
        return self.state.models[self.architecture_of(partition_id)]

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, ExpectedArray]:
        return expected_model(self.model_for(partition_id))

    def by_architecture(self, replies: Mapping[int, Reply]) -> dict[str, dict[int, Reply]]:
        """Return the replies of each architecture."""
        members: dict[str, dict[int, Reply]] = {}
        for n, reply in replies.items():
            members.setdefault(self.architecture_of(n), {})[n] = reply
        return members

    def bounded(self, replies: dict[int, Reply]) -> dict[int, Reply]:
        """Clip updates to `update_cap` times the median norm within their architecture."""
        alike = map(super().bounded, self.by_architecture(replies).values())
        bounded = {n: reply for members in alike for n, reply in members.items()}
        return {n: bounded[n] for n in replies}

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> FedDFState:
        """Average the models of each architecture, then distill the ensemble into all of them."""
        models = dict(self.state.models)
        for name, members in self.by_architecture(replies).items():
            models[name] = self.average({n: dict(reply.arrays) for n, reply in members.items()})
        if self.settings.distillation_steps:
            models = self.distilled(server_round, models, replies)
        return replace(self.state, models=models)

    def distilled(
        self, server_round: int, models: dict[str, Model], replies: dict[int, Reply]
    ) -> dict[str, Model]:
        """Return the model of each architecture, trained towards the ensemble of the replies."""
        server, settings = self.server_models, self.settings
        logits = ensemble_logits(
            {
                n: server.predict(self.architecture_of(n), reply.arrays, server_round)
                for n, reply in replies.items()
            },
            MIXINGS[self.plan.mixing],
        )
        if logits is None:
            log(WARNING, "Round %d: no distillation, since no model has finite predictions",
                server_round)  # fmt: skip
            return models
        return {
            name: server.fit(
                name,
                model,
                server.public_subset(server_round),
                softmax(logits),
                server_round,
                steps=settings.distillation_steps,
                batch_size=settings.distillation_batch_size,
                learning_rate=settings.distillation_learning_rate,
            )
            for name, model in models.items()
        }

    def global_model(self) -> Arrays:
        return named_arrays(self.state.models)


class PFedDFSettings(FedDFSettings):
    """Settings of FedDF with local fine-tuning."""

    table = "pfeddf"
    epochs: Annotated[int, OnNodes(1, 100)] = Field(default=5, ge=1)
    """Epochs of fine-tuning on the client's training data before it is evaluated."""


class PFedDF(FedDF):
    """FedDF with fine-tuning on each client before evaluation."""

    record = FedDF.record.derived(paper=replace(PAPER, part="§5.1"), settings_type=PFedDFSettings)
