"""The client of FedRep."""

from torch import Tensor, nn
from torch.func import functional_call

from fedkd_flwr.clients.base import Arrays, Training, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.clients.steps import yields_jobs
from fedkd_flwr.models.layers import layers_of
from fedkd_flwr.training.jobs import Steps, TrainJob
from fedkd_flwr.training.loop import epoch_batches
from strategies.fedrep import FedRepSettings


def head_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy, with gradients for the last layer alone."""
    head = set(layers_of(model)[-1].parameters(recurse=False))
    frozen = {name: p.detach() for name, p in model.named_parameters() if p not in head}
    return nn.functional.cross_entropy(functional_call(model, frozen, (images,)), labels)


def body_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy, with gradients for all layers but the last."""
    head = set(layers_of(model)[-1].parameters(recurse=False))
    frozen = {name: p.detach() for name, p in model.named_parameters() if p in head}
    return nn.functional.cross_entropy(functional_call(model, frozen, (images,)), labels)


class FedRepClient(ParameterClient):
    """Trains its head on the received body, then the body below that head, and sends the body."""

    settings: FedRepSettings

    @yields_jobs
    def train(self, received: Arrays, server_round: int, phase: str) -> Training:
        """Train the head, then the body, and reply with the body."""
        self.receive_model(received)
        loss = yield from self.train_head(server_round)
        # A model of one layer is all head.
        if self.replaced_parameters(self.model):
            loss = yield from self.train_locally(server_round, body_loss)
        return TrainReply(self.model_arrays(), {"train-loss": loss})

    @yields_jobs
    def train_head(self, server_round: int) -> Steps[float]:
        """Train the head for `head_epochs` and return the mean loss over all samples seen.

        Parameters
        ----------
        server_round : int
            Round of the run. Batches depend on it.

        Yields
        ------
        Job
            The training of the head. Parameters without a gradient do not move, nor does their
            momentum.

        Returns
        -------
        float
            Mean loss over all samples seen.
        """
        optimizer = self.private_optimizer(self.model.parameters(), server_round)
        replaced = self.replaced_parameters(self.model)
        self.memory.load_optimizer("optimizer", optimizer, without=replaced)
        generator, size = self.generator("head-batches", server_round), self.run.training.batch_size
        epochs = self.settings.head_epochs
        batches = self.batches_at(epoch_batches(self.num_examples, size, epochs, generator))
        mean_loss: float = yield TrainJob(self.model, head_loss, optimizer, batches)
        self.memory.save_optimizer("optimizer", optimizer, without=replaced)
        return mean_loss
