"""The client of FedKMA: search, report mean logits, weigh the other clients."""

import numpy as np

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.prototypes import class_means, without_hidden
from fedkd_flwr.clients.supernets import SupernetClient
from strategies.fedkma import (
    CLASS_FLAGS,
    CLASS_LOGITS,
    SHARE_KNOWLEDGE,
    FedKMASettings,
    sharing_row,
)


class FedKMAClient(SupernetClient):
    """Reports mean logits besides its supernet, and computes its row of M."""

    settings: FedKMASettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train and reply with model and mean logits, or compute a row of M from a row of H."""
        if phase == SHARE_KNOWLEDGE:
            row = sharing_row(
                received["irrelevancy"],
                self.label_distribution(),
                self.settings.as_printed,
                self.settings.sharpness,
            )
            return TrainReply({"sharing": row.astype(np.float32)})
        reply = super().train(received, server_round, phase)
        logits = self.predict(self.model, self.data.train_images)
        means, counts = class_means(logits, self.data.train_labels, self.data.classes)
        logits_of_classes, sent_counts = without_hidden(means, counts, self.session.policy)
        reply.arrays[CLASS_LOGITS] = logits_of_classes
        reply.arrays[CLASS_FLAGS] = (sent_counts > 0).astype(logits_of_classes.dtype)
        return reply

    def label_distribution(self) -> np.ndarray:
        """Return p_i, the class distribution of the training data, shape (K,).

        It is that of the counts that may be reported: the server can compute p_i from a row of M.
        """
        counts = self.reported_counts()
        return counts / counts.sum()
