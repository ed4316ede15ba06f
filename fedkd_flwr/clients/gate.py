"""What may leave a client: what its method declares, as far as the node's policy allows it."""

from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import product
from typing import TypeVar

from fedkd_flwr.clients.messages import TrainReply
from fedkd_flwr.clients.participation import Participation
from fedkd_flwr.clients.policy import NOISED, NodePolicy, PolicyError
from strategies.core.declarations import Data, Sent
from strategies.core.evaluations import evaluated_metrics
from strategies.core.method_record import MethodRecord
from strategies.core.metrics import MODELS, OF_TRAINING, SIZES, SPLITS, Split, metric_name
from strategies.core.plan import PlanSettings
from strategies.core.privacy import NormalDraws, secret_normal
from strategies.core.replies import Metric

Value = TypeVar("Value")

CORRECT: dict[str, tuple[Split, str]] = {
    metric_name(model, split, "correct"): (split, metric_name(model, split, "total"))
    for model, split in product(MODELS, SPLITS)
}
"""Split and number of samples of each number of correct answers."""

SAMPLES = frozenset(["test-size", "validation-size", *(total for _, total in CORRECT.values())])
"""Numbers of validation and test samples."""


class UndeclaredError(ValueError):
    """A client would send what its method does not declare."""


def leaving(reply: TrainReply, part: Participation, classes: int) -> TrainReply:
    """Return what leaves a client of a reply.

    Parameters
    ----------
    reply : TrainReply
        What the client would send.
    part : Participation
        The run, the record of its method, and what the node's operator allows.
    classes : int
        K.

    Returns
    -------
    TrainReply
        The reply without optional items that may not leave.

    Raises
    ------
    UndeclaredError
        If an item is not declared.
    PolicyError
        If an item may not leave that the server needs.
    """
    policy, (arrays, metrics) = part.node.policy, _declared(part, classes)

    def passed(
        items: Mapping[str, Value], known: Mapping[str, Sent], declaration: str
    ) -> dict[str, Value]:
        left = []
        for name in items:
            sent = declaration_of(name, known)
            if sent is None:
                raise UndeclaredError(
                    f"`{name}` is not declared: in the record of {part.run.strategy}, add "
                    f"{declaration.format(name)}"
                )
            if not _is_forbidden(sent, policy, part.has_noise):
                left.append(name)
            elif sent.required:
                raise PolicyError(f"the method sends `{name}`, which may not leave this node")
        return {name: items[name] for name in left}

    return TrainReply(
        passed(reply.arrays, arrays, "Sent({!r}) to `sends`"),
        passed(reply.metrics, metrics, "Metric({!r}) to `train_metrics`"),
        reply.answers if policy.tells_answers else b"",
    )


@lru_cache(maxsize=1024)
def _declared(part: Participation, classes: int) -> tuple[dict[str, Sent], dict[str, Sent]]:
    """Return the declarations of arrays and of metrics, by name."""
    metrics = declared_metrics(part.run.plan, part.record, classes)
    return {sent.name: sent for sent in part.record.sends}, {sent.name: sent for sent in metrics}


def declared_metrics(plan: PlanSettings, record: MethodRecord, classes: int) -> tuple[Metric, ...]:
    """Return the numbers that a run of a method with K classes declares.

    Of two with one name the method's own comes last, and counts.
    """
    of_method = *record.train_metrics, *record.evaluation_metrics
    evaluated = evaluated_metrics(plan, classes, record.evaluates)
    return *SIZES, *OF_TRAINING, *of_method, *evaluated


def declaration_of(name: str, known: Mapping[str, Sent]) -> Sent | None:
    """Return what is declared of a name, which may match a pattern; None for nothing."""
    matching = (sent for pattern, sent in known.items() if fnmatchcase(name, pattern))
    return known.get(name) or next(matching, None)


def _is_forbidden(sent: Sent, policy: NodePolicy, has_noise: bool) -> bool:
    """Return whether an item may not leave.

    `NodePolicy.check_run` has decided which arrays and which requested measures may: those of a
    method and measures that the node allows.
    """
    if sent.is_result and not policy.tells_counts:
        return policy.allow_counts != NOISED or sent.name not in SAMPLES.union(CORRECT)
    if sent.requested or not sent.tells_of_training:
        return False
    if sent.required:
        return has_noise and Data.TRAINING in sent.inputs
    if sent.is_result:
        return policy.hides_divergence
    return has_noise or not policy.allow_training_metrics


def with_noise(
    metrics: Mapping[str, float],
    deviation: float,
    draw: NormalDraws = secret_normal,
    one_split: bool = False,
) -> tuple[dict[str, float], int]:
    """Add Gaussian noise to numbers of correct answers, as whole numbers from 0 to their total.

    Another validation or test sample changes each by 1 at most.

    Parameters
    ----------
    metrics : mapping
        Those of a reply.
    deviation : float
        Standard deviation of the noise, in samples.
    draw : callable
        Draws standard normal numbers of a shape.
    one_split : bool
        Whether the test samples are the validation samples.

    Returns
    -------
    tuple of dict and int
        The metrics with noise, and how many of the numbers one sample is counted in.
    """
    names = [name for name in CORRECT if name in metrics]
    noised = dict(metrics)
    for name, noise in zip(names, deviation * draw((len(names),)), strict=True):
        total = metrics[CORRECT[name][1]]
        noised[name] = min(max(0, round(metrics[name] + float(noise))), total)
    if one_split:
        return noised, len(names)
    return noised, max(Counter(CORRECT[name][0] for name in names).values(), default=0)
