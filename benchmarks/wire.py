"""Compare the size of KT-pFL messages on the wire with that of their numbers, P · K · 4 bytes.

The size is that of all objects that a SuperLink and a SuperNode exchange for a message: the arrays
in Flower's encoding, and their metadata.
"""

from collections.abc import Iterator
from logging import WARNING
from pathlib import Path
from tempfile import TemporaryDirectory

from flwr.app import Context, Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from benchmarks.images import SOURCE, settings_for, write_random_images
from benchmarks.pairs import Result
from fedkd_flwr.client_app import app
from fedkd_flwr.config import read_config
from fedkd_flwr.engines import InProcessGrid, flower_log_level
from fedkd_flwr.server_app import serve

PUBLIC, CLIENTS = 3000, 2


def measure() -> Iterator[Result]:
    """Measure the last training message of a small run, which holds a teacher, and its reply."""
    sizes: dict[str, int] = {}

    def measured_app(message: Message, context: Context) -> Message:
        reply = app(message, context)
        sizes["a client's teacher"] = size_on_the_wire(message)
        sizes["a client's predictions"] = size_on_the_wire(reply)
        return reply

    with TemporaryDirectory() as folder:
        write_random_images(Path(folder), PUBLIC + CLIENTS * 30)
        further = {"held-out-size": PUBLIC, "public-size": PUBLIC, "num-server-rounds": 2}
        settings = settings_for(Path(folder), "mlp", CLIENTS, **further)
        configuration = read_config({**settings, "output-dir": str(Path(folder) / "run")})
        with flower_log_level(WARNING):
            serve(InProcessGrid(measured_app, CLIENTS, configuration.flat()), configuration)
    numbers = PUBLIC * SOURCE.classes * 4
    for name, size in sizes.items():
        yield Result(
            f"{name} on the wire",
            "P · K · 4 bytes",
            size / 1000,
            numbers / 1000,
            size / numbers,
            at_most=1.02,
            unit="kB",
        )


def size_on_the_wire(message: Message) -> int:
    """Return the total bytes of a message's objects."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())
