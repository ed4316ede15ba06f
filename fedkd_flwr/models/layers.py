"""A model as a sequence of layers. Methods share or keep layers. The last one is the head."""

from torch import Tensor, nn


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules with parameters or buffers of their own, in the order of the state dict.

    Batch normalization counts as a layer. The architecture weights of a search network belong to
    the network itself, which comes first.
    """
    return [module for module in model.modules() if own_tensors(module)]


def own_tensors(layer: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers of a module, without those of its submodules."""
    return [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]


def mark_head(model: nn.Module, name: str) -> None:
    """Record which linear layer of a custom model is its head; an empty name for none."""
    vars(model)["name_of_head"] = name


def head_of(model: nn.Module) -> nn.Linear:
    """Return a model's head: its last linear layer, from features to logits.

    Raises
    ------
    ValueError
        If the model has no linear layer, or is a custom model whose logits none computes.
    """
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
