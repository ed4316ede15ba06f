"""Clients that are suspended at their jobs, so that equal jobs of a cohort run together.

Each client of a cohort runs in a greenlet of one thread. PyTorch keeps gradient, inference and
autocast modes per thread, and its random generators per process. A switch exchanges them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor

from fedkd_flwr.training.loop import generators_of


class Modes(NamedTuple):
    """What PyTorch keeps per thread."""

    inference: bool
    gradients: bool
    autocast: bool
    precision: torch.dtype


class SuspendedClient(greenlet):
    """A client of a cohort: it runs until its next job, and goes on with the job's result."""

    def __init__(self, serve: Callable[[], Any], device: str) -> None:
        super().__init__(lambda _: serve())
        self._cohort = getcurrent()
        self._kind = torch.device(device).type
        self._generators = generators_of(device)
        self._modes = self._modes_now()
        self._random_states = self._random_states_now()

    def go_on(self, result: Any = None) -> Any:
        """Give the client the result or error of its job; return its next job, or its answer."""
        with self._own_state():
            return self.throw(result) if isinstance(result, Exception) else self.switch(result)

    def wait_for(self, job: Any) -> Any:
        """Suspend the client, from inside it, until the cohort has run its job."""
        return self._cohort.switch(job)

    def close(self) -> None:
        """End a client that still waits for a job; its ``finally`` blocks run."""
        if self and not self.dead:
            with self._own_state():
                self.throw()

    @contextmanager
    def _own_state(self) -> Iterator[None]:
        """Exchange the caller's modes and random states for the client's."""
        outside, modes = self._random_states_now(), self._modes
        self._set_random_states(self._random_states)
        try:
            with (
                torch.inference_mode(modes.inference),
                torch.set_grad_enabled(modes.gradients),
                torch.autocast(self._kind, modes.precision, modes.autocast, cache_enabled=False),
            ):
                yield
                self._modes = self._modes_now()
            self._random_states = self._random_states_now()
        finally:
            self._set_random_states(outside)

    def _modes_now(self) -> Modes:
        return Modes(
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
            torch.is_autocast_enabled(self._kind),
            torch.get_autocast_dtype(self._kind),
        )

    def _random_states_now(self) -> list[Tensor]:
        return [generator.get_state() for generator in self._generators]

    def _set_random_states(self, states: list[Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


def result_of(job: Any) -> Any:
    """Run a job at once, or hand it to the cohort in which the client is suspended."""
    client = getcurrent()
    if isinstance(client, SuspendedClient):
        return client.wait_for(job)
    return job.run()
