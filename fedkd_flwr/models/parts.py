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


def head_of(model: nn.Module) -> nn.Linear:
    """Return a model's head: its last linear layer, from features to logits.

    Raises
    ------
    ValueError
        If the model has no linear layer.
    """
    linear_layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    if not linear_layers:
        raise ValueError("the model has no linear layer, and so no head; choose another model")
    return linear_layers[-1]
