"""Which methods of the tuned benchmark to use, by split, models and traffic; see `check.py`.

A method counts as *better* only if it is better than `local` with at least as many gradient steps,
see `equal_steps.py`.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from columns import Result, bytes_of, range_of_bytes, results, steps_of_method
from equal_steps import over_equal_steps, with_more_steps
from tables import caption, gain_of, markdown
from ten_seeds import effects

from fedkd_flwr.analysis.significance import Effect, Outcome

CLIENTS = {
    "groups, one model": ("k-classes-grouped", "cifar10-k-classes-grouped"),
    "groups, mixed models": ("mixed-k-classes-grouped", "cifar10-mixed-k-classes-grouped"),
    "Dirichlet, one model": ("dirichlet", "cifar10-dirichlet"),
    "Dirichlet, mixed models": ("mixed-dirichlet", "cifar10-mixed-dirichlet"),
}
"""The comparisons of one kind of clients, on Fashion-MNIST and on CIFAR-10."""


@dataclass(frozen=True)
class Answer:
    """A method for one kind of clients.

    Attributes
    ----------
    method : str
        Its name.
    gains : tuple of Effect
        Gain over `local` on each data set.
    at_equal_steps : tuple of Effect
        The same over `local` with at least as many steps.
    runs : tuple of list of Result
        Its runs on each data set.
    """

    method: str
    gains: tuple[Effect, ...]
    at_equal_steps: tuple[Effect, ...]
    runs: tuple[list[Result], ...]

    @property
    def is_better(self) -> bool:
        """Whether it is *better* than `local` with at least as many steps on all data sets."""
        return all(effect.outcome is Outcome.BETTER for effect in self.at_equal_steps)

    @property
    def gain(self) -> float:
        """Mean gain over `local` over data sets; methods have the order of their accuracy."""
        return float(np.mean([effect.gain for effect in self.gains]))

    @property
    def cells(self) -> list[str]:
        """For each data set the gain over `local`, and where it has more steps the other one."""
        pairs = zip(self.gains, self.at_equal_steps, strict=True)
        return [
            gain_of(usual) if usual == equal else f"{gain_of(usual)}; {gain_of(equal)}"
            for usual, equal in pairs
        ]

    @property
    def traffic(self) -> float:
        """Mean bytes of a run over data sets."""
        return float(np.mean([bytes_of(own) for own in self.runs]))


def answers(clients: str) -> list[Answer]:
    """Return the methods that are *better* on all data sets, and that none surpasses.

    A method is surpassed by one with a larger mean gain over `local` and no more traffic, both
    means over the data sets.

    Parameters
    ----------
    clients : str
        A key of `CLIENTS`.

    Returns
    -------
    list of Answer
        The largest gain first, which is also the most traffic first.
    """
    found = [answer for answer in candidates(clients) if answer.is_better]
    front: list[Answer] = []
    for answer in sorted(found, key=lambda answer: (answer.traffic, -answer.gain)):
        if not front or answer.gain > front[-1].gain:
            front.append(answer)
    return front[::-1]


def candidates(clients: str) -> list[Answer]:
    """Return the methods that have runs on all data sets, for a key of `CLIENTS`."""
    names = CLIENTS[clients]
    gains = [effects(f"benchmark-tuned/retuned-{name}") for name in names]
    at_equal_steps = [_at_equal_steps(name) for name in names]
    found = [results(f"benchmark-tuned/retuned-{name}") for name in names]
    return [
        Answer(
            method,
            tuple(one[method] for one in gains),
            tuple(one[method] for one in at_equal_steps),
            tuple([run for run in runs if run.strategy == method] for runs in found),
        )
        for method in gains[0]
        if all(method in one for one in gains)
    ]


def table() -> str:
    """Return the methods of `answers` for all kinds of clients."""
    rows = []
    groups: dict[tuple[str, ...], list[Result]] = {}
    for clients in CLIENTS:
        for answer in answers(clients):
            own = [*itertools.chain(*answer.runs)]
            groups[clients, answer.method] = [*own, *_controls(clients)]
            rows.append(
                [
                    clients,
                    f"`{answer.method}`",
                    *answer.cells,
                    range_of_bytes(answer.runs),
                    f"{steps_of_method(own):,}",
                ]
            )
    headings = [
        "clients", "method", "Fashion-MNIST, points (95%):", "CIFAR-10, points (95%):",
        "bytes of a run:", "gradient steps of a client:",
    ]  # fmt: skip
    return f"{markdown(headings, rows)}\n{caption(groups, {}, has_verdicts=False)}\n"


def counts() -> str:
    """Return `counted` for the tuned comparisons, over `local` with at least as many steps."""
    groups = {
        (clients, name): [*results(f"benchmark-tuned/retuned-{name}"), *_controls(clients)]
        for clients, names in CLIENTS.items()
        for name in names
    }
    return f"{counted(outcomes())}\n{caption(groups, {}, has_verdicts=False)}\n"


def counted(found: Mapping[str, Counter[Outcome]]) -> str:
    """Return in how many comparisons each method is *better*, *not shown* to differ, or *worse*.

    Methods that are *better* in fewer than half of their comparisons are left out.
    """
    often = [m for m, own in found.items() if 2 * own[Outcome.BETTER] >= own.total()]
    often.sort(key=lambda m: (-found[m][Outcome.BETTER] / found[m].total(), -found[m].total(), m))
    rows = [
        [f"`{m}`", str(found[m].total()), *(str(found[m][outcome]) for outcome in Outcome)]
        for m in often
    ]
    return markdown(["method", "comparisons:", *(f"{outcome}:" for outcome in Outcome)], rows)


def outcomes() -> dict[str, Counter[Outcome]]:
    """Return how often each method has each outcome, over `local` with at least as many steps."""
    found: dict[str, Counter[Outcome]] = {}
    for name in itertools.chain(*CLIENTS.values()):
        for method, effect in _at_equal_steps(name).items():
            found.setdefault(method, Counter())[effect.outcome] += 1
    return found


@functools.cache
def _at_equal_steps(name: str) -> dict[str, Effect]:
    """Return the gain of each method over `local` with at least as many steps.

    Raises
    ------
    ValueError
        If a method takes more steps than any `local`.
    """
    tuned, controls = f"benchmark-tuned/retuned-{name}", f"benchmark-tuned/controls-steps-{name}"
    equal = over_equal_steps(tuned, controls)
    if unequal := set(with_more_steps(tuned)) - set(equal):
        raise ValueError(f"{controls} has too few steps for {', '.join(sorted(unequal))}.")
    return {**effects(tuned), **equal}


def _controls(clients: str) -> list[Result]:
    """Return the runs of `local` with more steps for a key of `CLIENTS`."""
    names = CLIENTS[clients]
    return [run for name in names for run in results(f"benchmark-tuned/controls-steps-{name}")]
