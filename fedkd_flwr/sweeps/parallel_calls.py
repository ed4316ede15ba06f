"""Parallel calls in separate processes, as Ray tasks.

On this machine, or on the Ray cluster that ``RAY_ADDRESS`` names.
"""

import os
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from logging import WARNING
from typing import Any, TypeVar

from fedkd_flwr.config import ConfigError

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

POLL_SECONDS = 0.5  # interval at which the progress of the calls is read

OBJECT_STORE_BYTES = 100_000_000
"""Memory that Ray may share between processes; items and outcomes are small."""


def call_in_parallel(
    call: Callable[[Item], Outcome],
    items: Iterable[Item],
    jobs: int,
    cpus: int,
    gpus: float = 0.0,
    on_wait: Callable[[Collection[Item]], None] = lambda items: None,
) -> Generator[tuple[Item, Outcome | Exception], None, None]:
    """Call a function with each item, and yield the outcomes as they arrive."""
    with _ray(jobs * cpus):
        import ray

        _require_room(cpus, gpus)
        # A call that killed its process would kill the next one too.
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(call)
        waiting = iter(items)
        running: dict[Any, Item] = {}
        try:
            while True:
                for item in islice(waiting, jobs - len(running)):
                    running[task.remote(item)] = item
                if not running:
                    return
                done, _ = ray.wait(list(running), timeout=POLL_SECONDS)
                on_wait(list(running.values()))
                for reference in done:
                    yield running.pop(reference), _outcome(reference)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


@contextmanager
def _ray(cpus: int) -> Iterator[None]:
    """Connect to the cluster of ``RAY_ADDRESS`` or start Ray here; disconnect at the end."""
    # Under `uv run`, Ray would start its processes with `uv run` too, in a copy of this folder.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    # Ray hides GPUs from calls that reserve none, as intended, and warns that this will change.
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
    """Refuse resources that no machine has, which Ray would wait for forever."""
    import ray

    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    machines = [node["Resources"] for node in nodes if node["Alive"]]
    if not any(m.get("CPU", 0) >= cpus and m.get("GPU", 0) >= gpus for m in machines):
        had = ", ".join(f"{m.get('CPU', 0):g} and {m.get('GPU', 0):g}" for m in machines)
        raise ConfigError(
            f"A run needs {cpus} CPUs and {gpus:g} GPUs, and no machine has them; "
            f"Ray's machines have {had}. Change --cpus-per-run or --gpus-per-run."
        )


def _outcome(reference: Any) -> Any:
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        return error
