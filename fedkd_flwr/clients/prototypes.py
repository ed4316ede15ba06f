"""What clients share that exchange class means, and those that agree on a width of features."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, PersonalClient
from fedkd_flwr.clients.steps import yields_jobs
from fedkd_flwr.export import model_card, save_personalized_model
from fedkd_flwr.models.features import FeatureExtractor, fold_into
from fedkd_flwr.models.parts import head_of
from fedkd_flwr.models.pool import Architecture
from fedkd_flwr.training.jobs import PredictJob, Steps
from strategies.prototypes import CLASS_COUNTS, CLASS_MEANS, HEAD_BIAS, HEAD_WEIGHT


def class_means(values: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean of each class's rows.

    Parameters
    ----------
    values : Tensor
        Shape (n, d), one row a sample.
    labels : Tensor
        Shape (n,), int64.
    num_classes : int
        K.

    Returns
    -------
    means : Tensor
        Shape (K, d); the rows of absent classes are zeros.
    counts : Tensor
        Shape (K,), samples of each class, of the values' type.
    """
    members = functional.one_hot(labels, num_classes).to(values.dtype)
    counts = members.sum(dim=0)
    # What is sent has all digits, whatever networks multiply in.
    with torch.autocast(values.device.type, enabled=False):
        sums = members.T @ values
    return sums / counts.clamp(min=1)[:, None], counts


class ClassMeanClient(PersonalClient):
    """A client that tells the means of its classes."""

    def class_mean_arrays(self, values: Tensor) -> Arrays:
        """Return the class means and counts of one row a training sample, (D_n, d)."""
        means, counts = class_means(values, self.data.train_labels, self.data.classes)
        return {CLASS_MEANS: means.cpu().numpy(), CLASS_COUNTS: counts.cpu().numpy()}


class CommonWidthClient(ClassMeanClient):
    """A client whose features have the width that all clients agree on."""

    needs_head = True

    @property
    def architecture(self) -> Architecture:
        """What the client's model is, with a projection where its own width is another."""
        return replace(super().architecture, feature_width=self.settings.feature_width)

    @torch.no_grad()
    def receive_head(self, received: Arrays) -> None:
        """Overwrite the model's head where one came."""
        if HEAD_WEIGHT in received:
            head = head_of(self.model)
            head.weight.copy_(self.tensor(received[HEAD_WEIGHT]))
            head.bias.copy_(self.tensor(received[HEAD_BIAS]))

    @yields_jobs
    def features(self) -> Steps[Tensor]:
        """Return the features of the training samples, shape (D_n, d)."""
        answer: Tensor = yield PredictJob(FeatureExtractor(self.model), self.data.train_images)
        return answer

    @property
    def evaluated_head(self) -> nn.Linear:
        """What classifies by features when the client is evaluated: the model's head."""
        return head_of(self.model)

    def export_model(self, folder: Path, metrics: Mapping[str, float]) -> Path:
        """Write what was evaluated as the model's architecture is, the projection in its head."""
        card = model_card(self.run, self.model_name, self.partition_id, metrics)
        plain = fold_into(super().architecture.build(), self.model, self.evaluated_head)
        return save_personalized_model(plain, card, folder)
