"""Detection of a forgotten ``yield from`` in a client's `train`.

Calling a generator function runs none of its code. A client that calls ``self.train_locally(...)``
without ``yield from`` would therefore reply untrained, and no error would say so.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from fedkd_flwr.clients.reply import Training, TrainReply
from fedkd_flwr.training.jobs import ForgottenYieldFromError, Steps

Client = TypeVar("Client", bound=Any)
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class StepsCall:
    """A call of a method that yields jobs.

    Attributes
    ----------
    steps : generator
        What the method returned.
    name : str
        The method's name.
    caller : str
        The calling function and its line.
    """

    steps: Generator[Any, Any, Any]
    name: str
    caller: str


def yields_jobs(
    method: Callable[Concatenate[Client, Arguments], Steps[Answer]],
) -> Callable[Concatenate[Client, Arguments], Steps[Answer]]:
    """Mark a client's method that has to be called with ``yield from``.

    Each call is added to the client's `steps_called`, which `checked` reads.
    """

    @functools.wraps(method)
    def call(client: Client, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Steps[Answer]:
        steps = method(client, *args, **kwargs)
        frame = sys._getframe(1)
        caller = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
        client.steps_called.append(StepsCall(steps, method.__name__, caller))
        return steps

    return call


def checked(client: Any, steps: object) -> Training:
    """Run the steps of a client's `train`, and refuse them if a job was left out.

    Parameters
    ----------
    client : PersonalClient
        The client. Its `steps_called` lists the calls of methods that yield jobs.
    steps : generator
        What its `train` returned.

    Raises
    ------
    ForgottenYieldFromError
        If `train` has no ``yield``, or called a method that yields jobs without ``yield from``.
    TypeError
        If `train` returned something other than a `TrainReply`.
    """
    name = f"{type(client).__qualname__}.train"
    if not isinstance(steps, Generator):
        raise ForgottenYieldFromError(
            f"{name} contains no `yield from`, so it trains nothing; "
            "write `loss = yield from self.train_locally(server_round)`"
        )
    reply = yield from steps
    for call in client.steps_called:
        if inspect.getgeneratorstate(call.steps) == inspect.GEN_CREATED:
            raise ForgottenYieldFromError(
                f"{call.caller}: {call.name} did not run; write `yield from` before the call"
            )
    client.steps_called.clear()
    if not isinstance(reply, TrainReply):
        raise TypeError(f"{name} returned a {type(reply).__name__}; return a TrainReply")
    return reply
