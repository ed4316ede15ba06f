"""A model as a sequence of layers, the last of which is the head, and their initial weights."""

import torch
from torch import Tensor, nn

from fedkd_flwr.models.torch_internals import is_batch_norm
from strategies.core.declarations import WITHOUT_BATCH_NORM, LayerChoice


class HalvingMaxPool2d(nn.MaxPool2d):
    """Max-pooling over windows of 2x2, faster than PyTorch's in inference mode on a CPU.

    PyTorch's kernel also finds where each maximum is, which predictions do not need.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, input: Tensor) -> Tensor:
        """Return the maxima, shape (..., height // 2, width // 2)."""
        if input.device.type != "cpu" or not torch.is_inference_mode_enabled():
            return super().forward(input)
        rows, columns = (side // 2 * 2 for side in input.shape[-2:])
        of_rows = torch.maximum(input[..., 0:rows:2, :columns], input[..., 1:rows:2, :columns])
        return torch.maximum(of_rows[..., 0::2], of_rows[..., 1::2])


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules with own parameters or buffers, in the order of the state dict."""
    return [module for module in model.modules() if own_tensors(module)]


def chosen_layers(model: nn.Module, choice: LayerChoice) -> list[nn.Module]:
    """Return some of a model's layers, in their order."""
    layers = layers_of(model)
    if choice == WITHOUT_BATCH_NORM:
        return [layer for layer in layers if not is_batch_norm(layer)]
    return layers[choice]


def head_and_body(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters of a model's last layer, and those of all others."""
    head = list(layers_of(model)[-1].parameters(recurse=False))
    return head, [parameter for parameter in model.parameters() if parameter not in set(head)]


def own_tensors(layer: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers of a module, without those of its submodules."""
    return [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]


def require_body(model: nn.Module) -> None:
    """Refuse a model that has no layer below its last."""
    if len(layers_of(model)) < 2:
        raise ValueError("the model has one layer, and so no body; choose another model")


def mark_head(model: nn.Module, name: str) -> None:
    """Record which linear layer of a custom model is its head; an empty name for none."""
    vars(model)["name_of_head"] = name


def head_of(model: nn.Module) -> nn.Linear:
    """Return a model's head, its last linear layer; refuse a model without one."""
    if "name_of_head" in vars(model):
        return _marked_head(model, vars(model)["name_of_head"])
    linear_layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    if not linear_layers:
        raise ValueError("the model has no linear layer, and so no head; choose another model")
    return linear_layers[-1]


def _marked_head(model: nn.Module, name: str) -> nn.Linear:
    if not name:
        raise ValueError(
            f"{type(model).__name__} has no head, which the method needs: its logits should be "
            "the output of an nn.Linear with a bias on features (n, d)"
        )
    head = model.get_submodule(name)
    assert isinstance(head, nn.Linear)
    return head


def with_he_weights(model: nn.Module) -> nn.Module:
    """Initialize a plain network's hidden layers like He et al. (ICCV 2015), and return it.

    With PyTorch's default the signal fades from layer to layer, and plain SGD at the papers'
    learning rates stays at chance level. The output layer keeps PyTorch's smaller default.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return model


class Ensemble(nn.Module):
    """A client's own model and a shared one, not copied, whose weighted logits are summed."""

    weights: Tensor

    def __init__(
        self, own: nn.Module, shared: nn.Module, own_weight: float = 1.0, shared_weight: float = 1.0
    ) -> None:
        super().__init__()
        self.own, self.shared = own, shared
        device = next(own.parameters()).device
        self.register_buffer("weights", torch.tensor([own_weight, shared_weight], device=device))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape (n, K)."""
        return self.weights[0] * self.own(images) + self.weights[1] * self.shared(images)
