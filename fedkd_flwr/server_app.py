"""The Flower ServerApp: config → strategy → start → run directory."""

import time
from collections.abc import Sequence
from contextlib import closing, suppress
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray
from torch import nn

from fedkd_flwr.clients.estimators import require_estimator
from fedkd_flwr.clients.participation import assigned_models
from fedkd_flwr.clients.tracebacks import ClientCodeError
from fedkd_flwr.config import ConfigError, Configuration, RunConfig, read_config
from fedkd_flwr.custom_objects.importing import is_custom
from fedkd_flwr.data.checks import check_data
from fedkd_flwr.data.clients import DataRecord, client_parts, load_private
from fedkd_flwr.data.custom_data import require_complete
from fedkd_flwr.data.registry import DATASETS, DataError
from fedkd_flwr.export import keep_chosen
from fedkd_flwr.grids import Closing, FastPollingGrid, MessageGrid, SimulationGrid
from fedkd_flwr.models.build import (
    build_fitting,
    doubts,
    draws_or_counts_apart,
    require_builds,
    require_unchanged_samples,
    require_whole_state,
)
from fedkd_flwr.models.estimators import names_estimator
from fedkd_flwr.models.layers import head_of, require_body
from fedkd_flwr.runs import (
    Checkpoint,
    Run,
    RunDirectory,
    RunDirectoryError,
    absolute,
    changed_settings,
    default_run_directory,
    failures_in_words,
    load_run,
    prefers_distilled,
    read_checkpoint,
    require_fitting,
    require_memories,
    require_new,
    require_same_clients,
    require_start,
    require_writable,
)
from fedkd_flwr.trackers import TrackerObserver
from fedkd_flwr.training.dp_sgd import require_separate_samples
from fedkd_flwr.training.loop import build_optimizer, seeded, try_step
from fedkd_flwr.training.server_models import RunModels
from strategies.core import flower
from strategies.core.flower import log
from strategies.core.method_record import Need
from strategies.core.replies import TooFewRepliesError
from strategies.core.rounds import NEW_CLIENTS, Observer, StoppedEarly
from strategies.core.state import OtherStateError, named_arrays
from strategies.parameters import SharedModelSettings

SETTLED_SECONDS = 2.0  # seconds without a new node after which all nodes count as connected

app = ServerApp()

RUNS_FOLDER = Path.home() / "fedkd-runs"
"""Folder of runs without an output directory.

A SuperLink keeps the working directory of the process that started it, so a relative folder would
be unpredictable.
"""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the method of the run config."""
    try:
        wanted = read_config(context.run_config)
        wanted.run.trackers.require_installed()
        configuration = with_connected_clients(grid, wanted)
        # Loaded here alone: it brings a web server and an SQL library along.
        if isinstance(grid, flower.InMemoryGrid):
            check_run(configuration)
            require_simulated(grid, configuration.run.plan.num_clients)
            serve(SimulationGrid(grid), configuration)
            return
        if configuration.run.start_from:
            raise ConfigError(
                "start-from is for clients of this machine: the nodes of a deployment take no "
                "models from other runs. Leave it out."
            )
        if Need.PUBLIC_DATA_ON_SERVER in configuration.run.method.record.needs:
            check_server_data(configuration)
        serve(FastPollingGrid(grid), configuration)
    except (
        ClientCodeError, ConfigError, DataError, RunDirectoryError, TooFewRepliesError
    ) as error:  # fmt: skip
        # The message for the user comes before Flower's traceback.
        log(ERROR, "The run stopped: %s", error)
        raise


def with_connected_clients(grid: Grid, configuration: Configuration) -> Configuration:
    """Replace ``num-clients = 0`` by the number of connected nodes, once it no longer changes."""
    plan = configuration.run.plan
    if plan.num_clients:
        return configuration
    if configuration.run.resume:
        number = load_run(configuration.run.output_dir).config["num-clients"]
        return configuration.with_clients(number)
    deadline = time.monotonic() + plan.connect_timeout
    connected, same_since = len(list(grid.get_node_ids())), time.monotonic()
    while connected < plan.min_replies or time.monotonic() < same_since + SETTLED_SECONDS:
        if time.monotonic() >= deadline:
            break
        time.sleep(0.1)
        now = len(list(grid.get_node_ids()))
        if now != connected:
            connected, same_since = now, time.monotonic()
    if connected < plan.min_replies:
        raise TooFewRepliesError(
            f"num-clients = 0 takes those that are connected: {connected} are after "
            f"{plan.connect_timeout:g} s, and min-replies is {plan.min_replies}."
        )
    log(INFO, "%d clients are connected; the run has %d clients", connected, connected)
    return configuration.with_clients(connected)


def require_simulated(grid: Grid, num_clients: int) -> None:
    """Refuse a simulation with fewer nodes than clients, since no others will connect."""
    known, same_since = 0, time.monotonic()
    while 0 < (nodes := len(list(grid.get_node_ids()))) < num_clients:
        if nodes != known:
            known, same_since = nodes, time.monotonic()
        if time.monotonic() >= same_since + SETTLED_SECONDS:
            raise TooFewRepliesError(
                f"num-clients is {num_clients} and the federation has {nodes} nodes: use all of "
                "them with --run-config num-clients=0, or start more with --federation-config "
                f'"num-supernodes={num_clients} client-resources-num-cpus=1".'
            )
        time.sleep(0.1)


def check_run(configuration: Configuration) -> None:
    """Refuse an impossible run on this machine before any client starts."""
    run = configuration.run
    run.trackers.require_installed()
    if not run.plan.num_clients:
        raise ConfigError(
            "num-clients = 0 stands for all connected clients and works under flwr run only; set "
            "num-clients to a number."
        )
    if run.resume:
        stopped = load_run(run.output_dir)
        require_same_clients(changed_settings(stopped, configuration))
        require_memories(stopped, run)
    elif run.output_dir:
        require_new(absolute(run.output_dir))
    if run.start_from and not run.resume:
        require_start(configuration)
    for name, folder in (("state-dir", run.state_dir), ("models-dir", run.models_dir)):
        if folder:
            require_writable(absolute(folder), name)
    check_server_data(configuration)
    check_models(configuration)


def check_models(configuration: Configuration) -> None:
    """Refuse models that do not fit the run, by building one of each and training it for one step.

    Built-in ones are tried where the data are custom, there is noise, or a batch has one sample.
    """
    run, settings = configuration.run, configuration.settings
    shared = (settings.shared_model,) if isinstance(settings, SharedModelSettings) else ()
    is_own_data = run.data.dataset not in DATASETS
    fits_unseen = not (is_own_data or run.dp_sgd.noise_multiplier)
    built: list[nn.Module] = []
    for name in dict.fromkeys((*run.models.models, *shared)):
        samples = _smallest_batch(configuration, name)
        if fits_unseen and samples > 1 and not is_custom(name):
            continue
        try:
            images = (
                load_private(run.data).images
                if is_own_data
                else torch.empty(0, *run.data.image_shape)
            )
            if names_estimator(name):
                require_estimator(run, name, missing=bool(images.isnan().any()))
                continue
            require_complete(images, run.data.dataset, name)
            built.append(_checked_network(name, run, samples, built))
            if is_custom(name):
                _check_answers(built[-1], name, run)
        except ValueError as error:
            raise ConfigError(f"{run.strategy}: {error}.") from error


def _check_answers(model: nn.Module, name: str, run: RunConfig) -> None:
    """Refuse or doubt a custom network by its answers to drawn samples."""
    shape = run.data.image_shape
    with seeded("cpu", run.plan.seed, "other-weights"):
        samples = torch.randn(3, *shape)
        require_unchanged_samples(name, model, samples)
        other = build_fitting(name, shape, run.data.num_classes)
        require_whole_state(name, model, other, samples)
        for doubt in doubts(model, samples):
            log(WARNING, "%s %s", name, doubt)
        if draws_or_counts_apart(model, other, samples):
            log(WARNING, "%s trains differently than a new network with the same state: draw with "
                "PyTorch, such as torch.rand, and count in a float32 buffer, or else no run can "
                "be repeated, and clients in one process change each other", name)  # fmt: skip


def _smallest_batch(configuration: Configuration, name: str) -> int:
    run, plan = configuration.run, configuration.run.server_data_plan
    assigned = assigned_models(run.models, plan)
    owners = [n for n, model in enumerate(assigned) if model == name] or range(len(assigned))
    of_public = getattr(configuration.settings, "public_batch_size", run.training.batch_size)
    return min(run.training.batch_size, of_public, *(len(client_parts(plan, n)[0]) for n in owners))


def _checked_network(
    name: str, run: RunConfig, samples: int, others: Sequence[nn.Module]
) -> nn.Module:
    """Return a network of a name after a step with another one; see `check_models`."""
    client, (shape, classes) = run.method.client, (run.data.image_shape, run.data.num_classes)

    def built() -> nn.Module:
        with seeded("cpu", run.plan.seed, "initial-weights"):
            return build_fitting(name, shape, classes, run.models.search_space)

    model = built()
    if is_custom(name):
        require_builds(name, (model, built()), others)
    if client.needs_layer == "head":
        head_of(model)
    if client.needs_layer == "body":
        require_body(model)
    if run.dp_sgd.noise_multiplier:
        require_separate_samples(model, name)
    if is_custom(name) or samples == 1:
        _try_steps(built(), name, run, samples)
    return model


def _try_steps(model: nn.Module, name: str, run: RunConfig, samples: int) -> None:
    """Train what the method trains of a network for one step, on samples of zeros."""
    batch = (
        torch.zeros(samples, *run.data.image_shape),
        torch.arange(samples) % run.data.num_classes,
    )
    for part, parameters in run.method.client.trained_parts(model).items():
        optimizer = build_optimizer(run.training.optimizer, parameters, run.training.learning_rate)
        try:
            with seeded("cpu", run.plan.seed, "first-step"):
                try_step(model, batch, part, optimizer)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error.__cause__


def check_server_data(configuration: Configuration) -> None:
    """Refuse a run whose data, including the public set, is not available on this machine."""
    run = configuration.run
    uses_public_data = run.method.record.uses_public_data
    check_data(run.server_data_plan, run.plan.public_size if uses_public_data else 0)


def serve(grid: Grid, configuration: Configuration, observer: Observer | None = None) -> Run:
    """Run a method on a grid of clients and write the run directory."""
    run = configuration.run
    if run.torch_threads:
        torch.set_num_threads(run.torch_threads)
    data = None
    # The data of a federation are on its nodes.
    if not (isinstance(grid, MessageGrid) and grid.is_federation):
        # Where this machine lacks the data, clients say so themselves.
        with suppress(DataError):
            data = DataRecord.of(run.server_data_plan)
    directory, checkpoint = open_run_directory(configuration, data)
    with closing(directory):
        log(INFO, "Run directory: %s", directory.path)
        try:
            with_clients = run.trackers.tracker_clients
            trackers = [TrackerObserver(name, with_clients) for name in run.trackers.tracker]
            directory.watched_by([*trackers, observer or Observer()])
            run_rounds(grid, configuration, directory, checkpoint)
        except (Exception, KeyboardInterrupt):
            directory.give_up()
            raise
        if run.models_dir:
            keep_chosen(absolute(run.models_dir), prefers_distilled(directory.run))
        finished = directory.finish()
        log(INFO, "Finished. Run directory: %s", directory.path)
        if failures := failures_in_words([finished]):
            log(INFO, "Failures: %s", failures)
    return finished


def run_rounds(
    grid: Grid, configuration: Configuration, directory: RunDirectory, checkpoint: Checkpoint
) -> None:
    """Run the missing rounds, from the first or after those of a stopped run."""
    run = configuration.run
    for warning in configuration.warnings:
        log(WARNING, "%s", warning)
    if run.server_device != run.torch_device:
        log(INFO, "The server has no device %s and computes on the CPU", run.torch_device)
    plan = run.server_plan().model_copy(update={"run_id": directory.run_id})
    if directory.newcomers:
        # The clients that have trained need not be there.
        plan = plan.model_copy(update={"newcomers": tuple(directory.newcomers), "min_replies": 1})
    strategy = run.method.strategy(plan, configuration.settings, directory, RunModels(run))
    initial = initial_model(configuration)
    if run.start_from and not checkpoint.completed_rounds:
        require_fitting(configuration, named_arrays(strategy.begin(initial)), checkpoint.state)
    try:
        strategy.restore(checkpoint.completed_rounds, checkpoint.state, initial)
    except OtherStateError as error:
        if not checkpoint.completed_rounds and not checkpoint.state:
            raise TypeError(f"{run.strategy}: begin returns another state: {error}") from error
        writer = run.strategy if is_custom(run.strategy) else "fedkd-flwr"
        raise RunDirectoryError(
            f"The checkpoint of {directory.path} was written by another version of {writer} "
            f"({error}): continue the run with that version, or run it again."
        ) from None
    strategy.look_back(directory.run.round_rows)
    if checkpoint.completed_rounds:
        log(INFO, "Continuing after round %d", checkpoint.completed_rounds)
    rounds = strategy.plan.num_server_rounds - strategy.completed_rounds
    if isinstance(grid, MessageGrid):
        directory.memories = grid.memories
    if isinstance(grid, FastPollingGrid) and grid.is_federation and plan.close_after:
        grid.closing = Closing(plan.close_after, plan.min_replies)
    if directory.newcomers:
        log(INFO, "The run is finished; %d clients join it", len(directory.newcomers))
        directory.newcomers_received(strategy.receive_newcomers(grid).tables[NEW_CLIENTS])
        return
    with suppress(StoppedEarly):
        strategy.start(
            grid,
            ArrayRecord({kind: Array(vector) for kind, vector in initial.items()}),
            num_rounds=rounds,
            timeout=run.plan.round_timeout,
        )


def open_run_directory(
    configuration: Configuration, data: DataRecord | None = None
) -> tuple[RunDirectory, Checkpoint]:
    """Create a new run directory, or open the one to resume, with the record of its data."""
    run = configuration.run
    if run.resume:
        directory, checkpoint = RunDirectory.reopen(Path(run.output_dir), configuration)
        directory.compare_data(data.digests if data else {})
        return directory, checkpoint
    path = Path(run.output_dir or default_run_directory(configuration, RUNS_FOLDER))
    return RunDirectory.create(path, configuration, data), read_checkpoint(path)


def initial_model(configuration: Configuration) -> dict[str, NDArray[Any]]:
    """Return the shared layers of the initial global model; empty if there are none."""
    run, strategy = configuration.run, configuration.run.method.strategy
    if Need.ONE_ARCHITECTURE not in strategy.record.needs:
        return {}
    initial = RunModels(run).initial(layers=strategy.shared_layers(configuration.settings))
    if not initial:
        model = run.models.models[0]
        log(WARNING, "%s shares no layer of %s: each client trains alone", run.strategy, model)
    return initial
