"""Calls side by side in processes of their own, as tasks of Ray.

On this machine, or on the Ray cluster that ``RAY_ADDRESS`` names.
"""

import os
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from logging import WARNING
from typing import Any, Generic, TypeVar

from fedkd_flwr.config import ConfigError

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

LOOK_SECONDS = 0.5
"""How often is looked at what the calls have done so far."""

OBJECT_STORE_BYTES = 100_000_000
"""Memory that Ray may share between processes here; items and outcomes are small."""


@dataclass(frozen=True)
class SideBySide(Generic[Item, Outcome]):
    """How many calls there are at once, and what each of them has to itself.

    Attributes
    ----------
    call : callable
        What is called in another process, with one item; both have to be picklable.
    jobs : int
        Calls at a time, at most.
    cpus, gpus : float
        What one call is given; a GPU may be shared.
    """

    call: Callable[[Item], Outcome]
    jobs: int
    cpus: int
    gpus: float

    def over(
        self,
        items: Iterable[Item],
        look: Callable[[Collection[Item]], None] = lambda items: None,
    ) -> Generator[tuple[Item, Outcome | Exception], None, None]:
        """Call with each item, and yield the outcomes as they come.

        Whatever ends the iteration, no call goes on after it.

        Parameters
        ----------
        items : iterable
            Taken from only when there is room for one more.
        look : callable, optional
            Is given the items in progress from time to time.

        Yields
        ------
        tuple
            An item, and what the call returned, or why its process is gone.

        Raises
        ------
        ConfigError
            If no machine has what one call is given.
        """
        with _ray(self.jobs * self.cpus):
            import ray

            _require_room(self.cpus, self.gpus)
            # A call that killed its process would kill the next one too.
            task = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)(self.call)
            waiting = iter(items)
            running: dict[Any, Item] = {}
            try:
                while True:
                    for item in islice(waiting, self.jobs - len(running)):
                        running[task.remote(item)] = item
                    if not running:
                        return
                    done, _ = ray.wait(list(running), timeout=LOOK_SECONDS)
                    look(list(running.values()))
                    for reference in done:
                        yield running.pop(reference), _outcome(reference)
            finally:
                for reference in running:
                    ray.cancel(reference, force=True)


@contextmanager
def _ray(cpus: int) -> Iterator[None]:
    """Connect to the cluster of ``RAY_ADDRESS``, or start Ray on this machine, and leave it."""
    # Under `uv run` Ray would start its processes by `uv run` too, from a copy of this folder.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    # Ray hides GPUs from calls that have asked for none, as is meant, and says that it may not.
    warnings.filterwarnings("ignore", ".*override accelerator visible devices", FutureWarning)
    import ray

    address = os.environ.get("RAY_ADDRESS")
    if address:
        ray.init(address=address, logging_level=WARNING)
    else:
        ray.init(
            "local",
            num_cpus=cpus,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            logging_level=WARNING,
        )
    try:
        yield
    finally:
        ray.shutdown()


def _require_room(cpus: int, gpus: float) -> None:
    """Refuse to wait for ever for what no machine has."""
    import ray

    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    machines = [node["Resources"] for node in nodes if node["Alive"]]
    if not any(m.get("CPU", 0) >= cpus and m.get("GPU", 0) >= gpus for m in machines):
        had = ", ".join(f"{m.get('CPU', 0):g} and {m.get('GPU', 0):g}" for m in machines)
        raise ConfigError(
            f"A run is given {cpus} CPUs and {gpus:g} GPUs, which no machine has; "
            f"Ray's machines have {had}."
        )


def _outcome(reference: Any) -> Any:
    """Return what a call returned, or why there is nothing."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        return error
