"""Models by name, custom ones too, and whether they fit the samples of custom data."""

import inspect
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn

from fedkd_flwr.custom_objects.importing import CustomObjectError, find_callable, is_custom, told
from fedkd_flwr.data.registry import Shape
from fedkd_flwr.models.genotype import STANDARD, SupernetSettings
from fedkd_flwr.models.layers import mark_head
from fedkd_flwr.models.registry import ANY_SHAPE, DARTS_MODELS, MODELS, SMALLEST_SIDES, model_name


def build_model(
    name: str, shape: Shape, classes: int, search_space: SupernetSettings | None = None
) -> nn.Module:
    """Build a model with new weights, drawn from PyTorch's global generator.

    Parameters
    ----------
    name : str
        A key of `MODELS`, or a custom model as ``module:object``.
    shape : tuple of int
        Channels, height and width of an image. Custom models may take samples of any shape.
    classes : int
        Number of classes, at least 2.
    search_space : SupernetSettings, optional
        Size of ``darts`` and ``darts-fixed``. The default is the paper's.

    Returns
    -------
    nn.Module
        Maps float32 samples (N, *shape) to logits (N, classes).

    Raises
    ------
    ValueError
        If the name is unknown, the model does not take the shape, there are fewer than two
        classes, or a custom model does not meet the requirements of `build_custom_model`.

    Examples
    --------
    >>> fedkd_flwr.build_model("mlp", (1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    try:
        model_name(name)
    except ValueError as error:
        raise ValueError(f"model {error}") from None
    is_image = len(shape) == 3
    takes_any = is_custom(name) or name in ANY_SHAPE
    if not shape or min(shape) < 1 or not (is_image or takes_any):
        raise ValueError(
            f"an image shape is (channels, height, width), each at least 1, got {tuple(shape)}: "
            f"model {name!r} takes no other samples"
        )
    if classes < 2:
        raise ValueError(f"a model needs at least 2 classes, got {classes}")
    if is_custom(name):
        return build_custom_model(name, shape, classes)
    smallest = SMALLEST_SIDES.get(name, 1)
    if min(shape[1:], default=1) < smallest:
        raise ValueError(
            f"model {name!r} needs images of at least {smallest}x{smallest} pixels, "
            f"got {shape[1]}x{shape[2]}"
        )
    further = (search_space or STANDARD,) if name in DARTS_MODELS else ()
    model: nn.Module = resolve_name(MODELS[name])(shape, classes, *further)
    return model


def num_parameters(model: nn.Module) -> int:
    """Count the parameters of a model. Running statistics are not included."""
    return sum(parameter.numel() for parameter in model.parameters())


def build_fitting(
    name: str, shape: Shape, classes: int, search_space: SupernetSettings | None = None
) -> nn.Module:
    """Build a model that takes samples of a shape; refuse others, with the models that do."""
    if is_custom(name):
        return build_model(name, shape, classes)
    try:
        return _tried(name, shape, classes, search_space)
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        fitting = ", ".join(one for one in MODELS if _fits(one, shape, classes, search_space))
        if not fitting:
            raise ValueError(f"model {name} cannot be built: {reason}") from None
        raise ValueError(
            f"model {name} takes no samples (n, {_listed(shape)}); built-in models that do: "
            f"{fitting}; or set models to your own module:object ({reason})"
        ) from None


def doubts(model: nn.Module, samples: Tensor) -> list[str]:
    """Say what is allowed in a model and its answers to samples (n, *shape), and seldom meant."""
    rows = _answers(model, samples)
    said = []
    if hasattr(model, "training_step"):
        said.append(
            "has a training_step, which is not called: clients train by cross-entropy with the "
            "optimizer of the run; another loss belongs in a client of your own"
        )
    if (rows >= 0).all() and torch.allclose(rows.sum(dim=1), torch.ones(len(rows)), atol=1e-4):
        said.append(
            "returns rows that sum to one, as after a softmax: return logits, since losses apply "
            "the softmax themselves"
        )
    elif (last := _last_operation(model, samples)) in BOUNDED:
        said.append(
            f"ends with {last.lower()}, which bounds its answers: return logits, as a linear layer "
            "does, since losses apply the softmax themselves"
        )
    if not _close(rows, _answers(model, samples)):
        said.append(
            "answers differently when asked twice: in evaluation, dropout should be off, as "
            "nn.Dropout is, or F.dropout with training=self.training"
        )
    elif not _close(rows[:1], _answers(model, samples[:1])):
        said.append(
            "answers to a sample by the others in its batch: in evaluation, samples should not mix"
        )
    return said


TRIES = 5  # comparisons of two networks in training: in one, coins may fall alike


def draws_or_counts_apart(model: nn.Module, other: nn.Module, samples: Tensor) -> bool:
    """Return whether two networks with the same state answer differently in training.

    Under one seed of PyTorch. They do if one draws from another generator, or counts in an
    attribute. Buffers outside of the state may differ: where there are any, nothing is compared.
    """
    named = {name for name, _ in model.named_buffers()}
    if not named <= model.state_dict().keys():
        return False
    _in_training(model, samples)
    for _ in range(TRIES):
        other.load_state_dict(model.state_dict())
        if not _close(*(_in_training(one, samples) for one in (model, other))):
            return True
    return False


@torch.no_grad()
def _in_training(model: nn.Module, samples: Tensor) -> Tensor:
    """Return what a model answers in training under one seed of PyTorch."""
    was_training = model.training
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        answers: Tensor = model.train()(samples.clone())
    model.train(was_training)
    return answers


def _fits(name: str, shape: Shape, classes: int, search_space: SupernetSettings | None) -> bool:
    try:
        _tried(name, shape, classes, search_space)
    except (ValueError, RuntimeError):
        return False
    return True


def _tried(
    name: str, shape: Shape, classes: int, search_space: SupernetSettings | None
) -> nn.Module:
    model = build_model(name, shape, classes, search_space)
    _answers(model, torch.zeros(1, *shape))
    return model


def _answers(model: nn.Module, samples: Tensor, gradients: bool = False) -> Tensor:
    """Return what a model answers in evaluation, and leave the model as it was."""
    was_training = model.training
    try:
        with torch.set_grad_enabled(gradients):
            answers: Tensor = model.eval()(samples)
    finally:
        model.train(was_training)
    return answers


BOUNDED = ("Sigmoid", "Relu", "Softmax", "Tanh")
"""Operations of PyTorch whose results are no logits, as its gradients name them."""


def _last_operation(model: nn.Module, samples: Tensor) -> str:
    """Return the name of the operation that makes a model's answers."""
    answers = _answers(model, samples, gradients=True)
    return type(answers.grad_fn).__name__.removesuffix("Backward0")


def _close(rows: Tensor, others: Tensor) -> bool:
    return torch.allclose(rows, others, rtol=1e-3, atol=1e-4, equal_nan=True)


SIGNATURE = "(shape, classes) -> torch.nn.Module"


def build_custom_model(name: str, shape: Shape, classes: int) -> nn.Module:
    """Build a custom model, and find its head and sizes of lazy layers with one sample of zeros."""
    builder = find_callable(name, SIGNATURE)
    _require_signature(builder, name, shape, classes)
    try:
        model = builder(shape, classes)
    # A user's builder may raise anything.
    except Exception as error:
        raise CustomObjectError(f"{name}({shape}, {classes}) fails: {told(error)}") from error
    return checked_custom_model(model, name, shape, classes)


def _require_signature(builder: Callable[..., Any], name: str, shape: Shape, classes: int) -> None:
    """Refuse what a library owns: its first parameter may be ``weights``, which are downloaded."""
    try:
        inspect.signature(builder).bind(shape, classes)
    except TypeError as error:
        module, _, function = name.partition(":")
        raise CustomObjectError(
            f"{name} cannot be called with (shape, classes): {error}; write a builder in a module "
            f"of yours, such as: def build(shape, classes): return {module}.{function}"
            f"(num_classes=classes)"
        ) from error
    except ValueError:  # some objects have no signature
        return


def checked_custom_model(model: object, name: str, shape: Shape, classes: int) -> nn.Module:
    """Return a model with its head marked, after checking that it fits."""
    if not isinstance(model, nn.Module):
        raise CustomObjectError(
            f"{name}{shape, classes} is a {type(model).__name__}; it should be {SIGNATURE}"
        )
    mark_head(model, _name_of_head(model, name, shape, classes))
    _require_parameters(model, name)
    return model


def require_builds(name: str, models: Sequence[nn.Module], others: Sequence[nn.Module]) -> None:
    """Refuse a builder that does not make a new network of the same weights at each call.

    `models` are two of it under one seed, which share no trained tensor or buffer with `others`.
    """
    first, second = models
    for other in (second, *others):
        if shared := _shared_tensors(first, other):
            raise CustomObjectError(
                f"{name}: {', '.join(shared)} would be one tensor in the models of several "
                "clients. Make the network inside of the builder, so that each call returns a new "
                "one; only parameters with requires_grad = False may be shared"
            )
    weights, again = first.state_dict(), second.state_dict()
    if drawn := [key for key in weights if not torch.equal(weights[key], again[key])]:
        raise CustomObjectError(
            f"{name}: {', '.join(drawn)} differ between two calls under one seed. Draw them with "
            "PyTorch, or seed the other generator inside of the builder, as in "
            "numpy.random.default_rng(torch.initial_seed())"
        )


def require_unchanged_samples(name: str, model: nn.Module, samples: Tensor) -> None:
    """Refuse a network that changes its samples in place: all later evaluations would read them."""
    given = samples.clone()
    _answers(model, given)
    if not torch.equal(given, samples):
        raise CustomObjectError(
            f"{name} changes its samples in place, and later evaluations would read them: write "
            "x = x - mean instead of x -= mean, and leave inplace=True out of the first layers"
        )


def require_whole_state(name: str, model: nn.Module, other: nn.Module, samples: Tensor) -> None:
    """Refuse a network that has weights outside of its state; `other` is of another seed."""
    try:
        other.load_state_dict(model.state_dict())
    except RuntimeError as error:
        raise CustomObjectError(
            f"{name} builds networks of other shapes under another seed: draw no sizes"
        ) from error
    rows, again = _answers(model, samples), _answers(model, samples)
    # A network that draws numbers in evaluation tells nothing.
    if _close(rows, again) and not _close(rows, _answers(other, samples)):
        raise CustomObjectError(
            f"{name}: two networks with the same parameters and buffers answer differently. "
            "Weights in a list or attribute are neither trained nor saved: keep layers in "
            "nn.ModuleList, and tensors in nn.Parameter or register_buffer"
        )


def _shared_tensors(model: nn.Module, other: nn.Module) -> list[str]:
    """Return the names of a model's trained parameters and buffers that are in another's memory."""
    theirs = {tensor.untyped_storage().data_ptr() for tensor in _lasting_tensors(other).values()}
    return [
        name
        for name, tensor in _lasting_tensors(model).items()
        if tensor.numel() and tensor.untyped_storage().data_ptr() in theirs
    ]


def _lasting_tensors(model: nn.Module) -> dict[str, Tensor]:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return {**trained, **dict(model.named_buffers())}


def _name_of_head(model: nn.Module, name: str, shape: Shape, classes: int) -> str:
    """Return the name of the linear layer whose output is the model's, found with one sample."""
    answers: dict[str, tuple[Tensor, Tensor]] = {}
    hooks = [
        layer.register_forward_hook(
            lambda _, entered, left, part=part: answers.update({part: (entered[0], left)})
        )
        for part, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and part
    ]
    try:
        logits = _answers(model, torch.zeros(1, *shape))
    except Exception as error:
        raise CustomObjectError(
            f"{name} fails on samples (n, {_listed(shape)}): {told(error)}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(logits, Tensor) or logits.shape != (1, classes):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise CustomObjectError(
            f"{name} should map samples (n, {_listed(shape)}) to logits (n, {classes}), and "
            f"returns {got} for n = 1"
        )
    for part, (features, answer) in answers.items():
        head = model.get_submodule(part)
        if answer is logits and features.dim() == 2 and head.bias is not None:
            return part
    return ""


def _require_parameters(model: nn.Module, name: str) -> None:
    """Refuse weights that cannot be sent as one vector or saved in a file."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if not parameters:
        raise CustomObjectError(f"{name} has no parameters to train")
    for part, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            raise CustomObjectError(
                f"{name}: {part} is {parameter.dtype}, and should be torch.float32"
            )
    parts: dict[int, str] = {}
    for part, parameter in parameters.items():
        first = parts.setdefault(id(parameter), part)
        if first != part:
            raise CustomObjectError(f"{name}: {first} and {part} are one tensor, and should be two")


def _listed(shape: Shape) -> str:
    return ", ".join(map(str, shape))
