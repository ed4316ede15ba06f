"""Check a method: what holds for every method, shown in small runs of four clients.

Call `check_method` in a test of your own method. It downloads nothing and takes a few seconds::

    from fedkd_flwr.testing import check_method

    def test_my_method():
        check_method("my_package.my_method:mine")
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from logging import CRITICAL
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict, UserConfig
from torch import Tensor, nn

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.client_app import build_client, train_together
from fedkd_flwr.clients.policy import TRUSTED_NODE
from fedkd_flwr.config import ConfigError, Configuration, read_config
from fedkd_flwr.custom_objects.naming import STRATEGY, name_objects
from fedkd_flwr.engines import flower_log_level, resolve_output
from fedkd_flwr.engines.in_process import ClientCall, InProcessGrid
from fedkd_flwr.engines.starting import resumed
from fedkd_flwr.methods import Method, find_method
from fedkd_flwr.models.registry import DARTS
from fedkd_flwr.runs import Run
from fedkd_flwr.server_app import check_models, serve
from strategies.base import PersonalizedStrategy
from strategies.core.exchange import count_numbers
from strategies.core.method_record import Need
from strategies.core.replies import TooFewRepliesError, arrays_of
from strategies.spider import SpiderSettings
from strategies.supernets import SearchSettings

CLIENTS = 4

SETTINGS: Mapping[str, Any] = {
    "dataset": "digits",
    "partition": "k-classes",
    "classes-per-client": 4,
    "max-samples": 200,
    "held-out-size": 40,
    "public-size": 20,
    "num-clients": CLIENTS,
    "num-server-rounds": 2,
    "fraction-train": 0.75,
    "local-epochs": 1,
    "local-iterations": 2,
    "batch-size": 16,
    "learning-rate": 0.02,
    "momentum": 0.9,
    "client-split": "60/20/20",
    "device": "cpu",
    "torch-threads": 1,
    "cohort": "off",
}
"""The run that is checked; `check_method` takes changes of it."""

ARCHITECTURE_SEARCH: Mapping[str, Any] = {
    "models": DARTS,
    "supernet-channels": 2,
    "supernet-cells": 3,
    "supernet-nodes": 1,
    "supernet-stem-stride": 2,
    "supernet-operations": "none,skip_connect,sep_conv_3x3",
}
"""A supernet for methods that search architectures."""

ESTIMATOR = "sklearn.tree:DecisionTreeClassifier"

ROUNDING = 2e-3
"""Largest relative difference of losses between a cohort and clients that train alone."""


class WithoutHead(nn.Module):
    """A network whose last layer is a convolution, which methods that need a head refuse."""

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        super().__init__()
        self.body = nn.Conv2d(shape[0], 4, kernel_size=3, stride=2)
        self.last = nn.Conv2d(4, classes, kernel_size=3)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape (samples, classes)."""
        return self.last(self.body(images).relu()).mean(dim=(2, 3))


HEADLESS = f"{__name__}:{WithoutHead.__name__}"


def check_method(method: str | Method | tuple[type, type], **settings: Any) -> None:
    """Check that a method does what every method has to do.

    It runs, and repeats its numbers to the last digit, also after it was stopped. A cohort gives
    the numbers of clients that train alone, up to rounding. A failed client and an invalid reply
    are left out. Clients send what the method declares, and the run counts it. What the method
    needs is required before any client works.

    Parameters
    ----------
    method : str, Method or pair of classes
        A name such as ``kt-pfl`` or ``my_package.my_method:mine``, what `register` returns, or a
        pair of a strategy and a client class.
    **settings
        Changes of `SETTINGS`; names with dots through a dictionary.

    Raises
    ------
    AssertionError
        With one sentence that says what does not hold. Exceptions of the method's own code are
        raised as they are.

    Notes
    -----
    Noise that is secret differs in every run: give a method that draws it a seed.
    """
    flat = _settings_of(method, settings)
    threads = torch.get_num_threads()
    try:
        with TemporaryDirectory() as folder, flower_log_level(CRITICAL):
            checked = _Checked(flat, Path(folder))
            for check in CHECKS:
                check(checked)
    finally:
        torch.set_num_threads(threads)


def _settings_of(
    method: str | Method | tuple[type, type], changes: Mapping[str, Any]
) -> dict[str, Any]:
    changes = {name.replace("_", "-"): value for name, value in changes.items()}
    named = name_objects({STRATEGY: method, **changes})
    record = find_method(named[STRATEGY]).record
    searches = issubclass(record.settings_type, SearchSettings | SpiderSettings)
    one = ARCHITECTURE_SEARCH if searches else {"models": "mlp"}
    models = one if Need.ONE_ARCHITECTURE in record.needs else {"models": "mlp,lenet"}
    return {**SETTINGS, **models, **named}


# ---- Runs whose messages are kept ------------------------------------------------------


@dataclass(frozen=True)
class _Exchanged:
    kind: str
    server_round: int
    client: int
    down: Mapping[str, Array]
    up: Mapping[str, Array]


@dataclass
class _Recorder:
    spoil: Callable[[int, int, Message], None] = lambda server_round, client, reply: None
    exchanged: list[_Exchanged] = field(default_factory=list)

    def __call__(self, message: Message, context: Context) -> Message:
        kind = message.metadata.message_type
        reply = client_app(message, context)
        if kind == "query":
            return reply
        config = message.content.config_records["config"]
        server_round, client = config["server-round"], context.node_config["partition-id"]
        assert isinstance(server_round, int) and isinstance(client, int)
        if kind == "train":
            self.spoil(server_round, client, reply)
        # The server releases the arrays that it has read.
        down, up = dict(arrays_of(message)), dict(arrays_of(reply))
        self.exchanged.append(_Exchanged(kind, server_round, client, down, up))
        return reply


class _Stopped(BaseException):
    """Ends a run as a kill does: nothing catches it."""


@dataclass
class _Checked:
    """A method's small run, which all checks share."""

    flat: dict[str, Any]
    folder: Path

    def __post_init__(self) -> None:
        recorder = _Recorder()
        self.run = self.served("run", recorder)
        self.exchanged = recorder.exchanged

    @property
    def name(self) -> str:
        return str(self.flat[STRATEGY])

    @property
    def method(self) -> Method:
        return find_method(self.name)

    @property
    def strategy(self) -> type[PersonalizedStrategy]:
        return self.method.strategy

    def read(self, **changes: Any) -> Configuration:
        kebab = {name.replace("_", "-"): value for name, value in changes.items()}
        return read_config({**self.flat, **kebab})

    def served(self, name: str, app: ClientCall | None = None, **changes: Any) -> Run:
        folder = self.folder / name
        configuration = resolve_output(self.read(output_dir=str(folder), **changes), folder)
        return self.finished(configuration, app)

    def finished(self, configuration: Configuration, app: ClientCall | None = None) -> Run:
        together = train_together if configuration.run.cohort == "on" else None
        grid = InProcessGrid(app or client_app, CLIENTS, configuration, together=together)
        try:
            return serve(grid, configuration)
        except TooFewRepliesError as error:
            raise AssertionError(f"{self.name}: {error}") from None

    def require(self, holds: object, sentence: str) -> None:
        if not holds:
            raise AssertionError(f"{self.name}: {sentence}")


# ---- What has to hold ------------------------------------------------------------------


def _it_runs(checked: _Checked) -> None:
    run, clients = checked.run, checked.run.clients
    failed = clients[clients["failure"].notna()] if "failure" in clients else clients[:0]
    for row in failed.to_dict("records"):
        checked.require(
            False, f"client {row['partition_id']} failed in round {row['round']}: {row['failure']}"
        )
    checked.require(list(run.rounds["round"]) == [1, 2], "a run of two rounds has other rounds")
    for column in ("accuracy_mean", "loss_mean"):
        finite = np.isfinite(run.rounds[column].astype(float)).all()
        checked.require(finite, f"{column} is not a number in every round")


def _it_repeats_its_numbers(checked: _Checked) -> None:
    _require_equal(checked, checked.served("again"), "in a second run")


def _a_stopped_run_goes_on(checked: _Checked) -> None:
    """Stop round 2 after its first client."""
    trained: list[int] = []

    def stop(server_round: int, client: int, reply: Message) -> None:
        trained.append(server_round)
        if trained.count(2) == 2:
            raise _Stopped

    with suppress(_Stopped):
        checked.served("stopped", _Recorder(stop))
    configuration = resumed(checked.folder / "stopped", checked.flat)
    _require_equal(checked, checked.finished(configuration), "after a stop in round 2")


def _require_equal(checked: _Checked, found: Run, when: str) -> None:
    for name in ("rounds", "clients"):
        expected, table = getattr(checked.run, name), getattr(found, name)
        # A round that is asked for twice costs privacy twice.
        for column in (c for c in expected if not c.startswith(("seconds", "epsilon"))):
            same = column in table and table[column].equals(expected[column])
            checked.require(same, f"{when}, the table of {name} has another {column}")
    for name, matrix in checked.run.matrices.items():
        same = np.array_equal(found.matrices[name], matrix, equal_nan=True)
        checked.require(same, f"{when}, the matrix {name} is another")


def _a_cohort_changes_rounding_alone(checked: _Checked) -> None:
    together = checked.served("together", cohort="on")
    for column in {"train_loss", "loss"} & {*checked.run.clients}:
        alone, found = (of.clients[column].to_numpy(float) for of in (checked.run, together))
        same = np.allclose(alone, found, rtol=ROUNDING, atol=ROUNDING, equal_nan=True)
        checked.require(same, f"with cohort = on, clients have another {column}")


def _a_failed_client_is_left_out(checked: _Checked) -> None:
    """Client 1 fails in round 1; in round 2 its floating-point arrays are not finite."""
    spoiled: list[int] = []

    def spoil(server_round: int, client: int, reply: Message) -> None:
        if client != asked[server_round]:
            return
        if server_round == 1:
            raise RuntimeError("lost")
        arrays = {name: array.numpy() for name, array in arrays_of(reply).items()}
        broken = {n: a for n, a in arrays.items() if np.issubdtype(a.dtype, np.floating) and a.size}
        if broken:
            spoiled.append(server_round)
            broken = {name: np.full_like(array, np.nan) for name, array in broken.items()}
            packed = {name: Array(array) for name, array in {**arrays, **broken}.items()}
            reply.content["arrays"] = ArrayRecord(packed)

    asked = {
        t: max(e.client for e in checked.exchanged if (e.kind, e.server_round) == ("train", t))
        for t in (1, 2)
    }
    run = checked.served("failing", _Recorder(spoil))
    expected, counted = [1, len(spoiled)], list(run.rounds["failures"])
    checked.require(
        counted == expected,
        f"a client fails in round 1{' and sends NaN in round 2' if spoiled else ''}, and the run "
        f"counts {counted} failures instead of {expected}",
    )
    finite = np.isfinite(run.rounds["loss_mean"].astype(float)).all()
    checked.require(finite, "a reply of NaN reaches other clients")


def _clients_start_from_one_draw_or_their_own(checked: _Checked) -> None:
    # Others receive the weights of each round.
    if not checked.method.client.keeps_model:
        return
    for weights in ("common", "own"):
        flat = checked.read(initial_weights=weights).flat()
        first, other = (_first_model(flat, client) for client in (0, 2))
        same = all(torch.equal(first[name], other[name]) for name in first)
        checked.require(
            same == (weights == "common"),
            f"with initial-weights = {weights}, clients of one architecture start from "
            f"{'one draw' if same else 'draws of their own'}",
        )


def _first_model(flat: UserConfig, client: int) -> Mapping[str, Tensor]:
    node: UserConfig = {**TRUSTED_NODE, "partition-id": client}
    built = build_client(Context(1, 1, node, RecordDict(), flat))
    return dict(built.model.state_dict())


def _what_is_exchanged_is_declared(checked: _Checked) -> None:
    ways = {"send": "up", "receive": "down"}
    for verb, way in ways.items():
        found = any(getattr(exchanged, way) for exchanged in checked.exchanged)
        if checked.strategy.record.exchanged == "nothing":
            checked.require(not found, f"clients {verb} arrays, and `exchanged` is nothing")
        else:
            checked.require(found, f"clients {verb} no arrays, and `exchanged` is not nothing")


def _traffic_is_counted(checked: _Checked) -> None:
    trained = [exchanged for exchanged in checked.exchanged if exchanged.kind == "train"]
    for way in ("up", "down"):
        for row in checked.run.clients.to_dict("records"):
            key = row["round"], row["partition_id"]
            payloads = [getattr(e, way) for e in trained if (e.server_round, e.client) == key]
            if payloads:
                counted, sent = row[f"numbers_{way}"], sum(map(count_numbers, payloads))
                checked.require(
                    counted == sent,
                    f"numbers_{way} of client {key[1]} in round {key[0]} is {counted:g}, and "
                    f"{sent} numbers were exchanged",
                )


def _what_it_needs_is_required(checked: _Checked) -> None:
    for name, declared, is_refused, changes in _needs(checked.strategy, checked.method.client):
        if checked.flat["models"] == DARTS and "models" in changes:
            continue
        refusal = _refusal(checked, changes)
        changed = ", ".join(f"{key.replace('_', '-')} = {value}" for key, value in changes.items())
        sentence = f"`{name}` is {declared}, and {changed} is {'' if refusal else 'not '}refused"
        checked.require(bool(refusal) == is_refused, f"{sentence} {refusal and f'({refusal})'}")
        checked.require("\n" not in refusal, f"{changed} is refused in more than one line")


def _needs(
    strategy: type[PersonalizedStrategy], client: type[Any]
) -> Iterator[tuple[str, bool, bool, dict[str, Any]]]:
    """Yield properties, their values, whether settings are refused with them, and the settings."""
    record = strategy.record
    public = record.uses_public_data
    yield "public data", public, public, {"public_dataset": "none"}
    validation = Need.VALIDATION_DATA in record.needs
    yield Need.VALIDATION_DATA, validation, validation, {"client_split": "70/0/30"}
    descent = Need.PLAIN_DESCENT in record.needs
    yield Need.PLAIN_DESCENT, descent, descent, {"optimizer": "adam"}
    one_model = Need.ONE_ARCHITECTURE in record.needs
    yield Need.ONE_ARCHITECTURE, one_model, one_model, {"models": "mlp,lenet"}
    uses_head = client.needs_layer == "head"
    yield "needs_layer", uses_head, uses_head, {"models": HEADLESS}
    averages = record.averages_parameters
    yield "averages_parameters", averages, not averages, {"mixing": "median"}
    dp_sgd = record.dp_sgd
    yield "dp_sgd", dp_sgd, not dp_sgd, {"dp_sgd_noise_multiplier": 1.0}
    takes = record.takes_estimators
    yield "takes_estimators", takes, not takes, {"models": f"mlp,{ESTIMATOR}"}


def _refusal(checked: _Checked, changes: dict[str, Any]) -> str:
    try:
        check_models(checked.read(**changes))
    except ConfigError as error:
        return str(error)
    return ""


CHECKS: tuple[Callable[[_Checked], None], ...] = (
    _it_runs,
    _what_is_exchanged_is_declared,
    _traffic_is_counted,
    _what_it_needs_is_required,
    _clients_start_from_one_draw_or_their_own,
    _it_repeats_its_numbers,
    _a_stopped_run_goes_on,
    _a_cohort_changes_rounding_alone,
    _a_failed_client_is_left_out,
)
"""What `check_method` checks, in this order."""
