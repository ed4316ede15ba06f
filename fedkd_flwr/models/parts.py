"""A model as layers, the last of which is its head: what methods share or keep by layer."""

from torch import Tensor, nn


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules that hold numbers of their own, in the order of the state dict.

    Batch normalization is a layer like any other. A search network's architecture weights lie
    in the network itself, which comes first.
    """
    return [module for module in model.modules() if own_tensors(module)]


def own_tensors(layer: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers of a module, without those of modules inside it."""
    return [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]


def mark_head(model: nn.Module, name: str) -> None:
    """Note which linear layer of an own model is its head; an empty name for none."""
    vars(model)["name_of_head"] = name


def head_of(model: nn.Module) -> nn.Linear:
    """Return a model's head: its last linear layer, from features to logits.

    Raises
    ------
    ValueError
        If the model has no linear layer, or is an own one whose logits none gives.
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
            "what an nn.Linear with a bias makes of features (n, d)"
        )
    head = model.get_submodule(name)
    assert isinstance(head, nn.Linear)
    return head
