"""What is rebuilt of a run: clients' samples, models from files or stored state, genotypes."""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from torch import nn

from fedkd_flwr.client_app import build_client
from fedkd_flwr.clients.policy import TRUSTED_NODE
from fedkd_flwr.config import Configuration
from fedkd_flwr.custom_objects.importing import find_callable, find_custom, is_custom
from fedkd_flwr.data.clients import ClientData, client_indices, data_digests, labels_of, load_client
from fedkd_flwr.data.settings import DataPlan
from fedkd_flwr.export import load_model, read_card
from fedkd_flwr.memory import InProcessContext, MemoryFolder
from fedkd_flwr.models.build import SIGNATURE
from fedkd_flwr.models.darts import Supernet, derive_genotype
from fedkd_flwr.models.estimators import names_estimator
from fedkd_flwr.models.genotype import Genotype
from fedkd_flwr.models.vectors import fill_from_vectors
from fedkd_flwr.runs import Run, RunDirectoryError, recorded_config
from fedkd_flwr.runs.provenance import changed_code
from fedkd_flwr.runs.reading import other_data
from fedkd_flwr.training.loop import computing_in, predict_logits
from strategies.core.declarations import ALPHAS
from strategies.core.flower import log


def client_data(run: Run, partition_id: int) -> ClientData:
    """Return the samples that a client of a run was trained, validated and tested on.

    Parameters
    ----------
    run : Run
        The run, finished or not.
    partition_id : int
        The client, 0..N-1.

    Returns
    -------
    ClientData
        Images and labels of its training, validation and test split, and the public samples.

    Raises
    ------
    ConfigError, DataError
        If the data of the run cannot be rebuilt on this machine.

    Examples
    --------
    >>> data = fedkd_flwr.client_data(fedkd_flwr.load_run("runs/first"), 0)
    >>> data.train_images.shape[1:]
    torch.Size([1, 28, 28])
    """
    return load_client(plan_of_data(run, recorded_config(run)), partition_id)


def plan_of_data(run: Run, configuration: Configuration) -> DataPlan:
    """Return what the data of a run depend on; warn if they are not those that it ran on."""
    plan = configuration.run.data_plan
    for key in other_data(run, data_digests(plan)):
        log(WARNING, "The %s of %s has changed since the run was started.", key, run.path.name)
    return plan


def label_counts(run: Run) -> pd.DataFrame:
    """Count each client's samples by class, over its training, validation and test data.

    One row per client, one column per class of the data set. Raises `ConfigError` or `DataError` if
    the data of the run cannot be rebuilt on this machine.
    """
    plan = plan_of_data(run, recorded_config(run))
    labels = labels_of(plan.settings)
    counts = [
        np.bincount(labels[indices], minlength=plan.settings.num_classes)
        for indices in client_indices(plan)
    ]
    return pd.DataFrame(counts).rename_axis(index="partition_id", columns="label")


def client_model(run: Run, partition_id: int) -> nn.Module:
    """Return the personalized model of a client; see `Run.model`."""
    configuration = recorded_config(run)
    known = configuration.run.plan.num_clients
    if not 0 <= partition_id < known:
        raise ValueError(f"client {partition_id} is outside 0..{known - 1}")
    (model,) = map(copy.deepcopy, models_of(run, configuration, clients=[partition_id]))
    if distilled_clients(configuration, clients=[partition_id]):
        log(INFO, "Client %d: this is its model after the last distillation", partition_id)
    return model.eval()


def predict(run: Run, partition_id: int, samples: ArrayLike) -> NDArray[np.int64]:
    """Return the classes that a client's model gives to samples; see `Run.predict`."""
    configuration = recorded_config(run)
    plan = plan_of_data(run, configuration)
    data = load_client(plan, partition_id)
    given, own = torch.as_tensor(np.asarray(samples)), data.samples.images
    if given.is_floating_point() and not own.is_floating_point():
        raise ValueError(
            f"The samples are {given.dtype}, and images of this run are whole numbers from 0 to "
            "255; if yours are from 0 to 1, pass (255 * images).round().astype('uint8')."
        )
    if own.is_floating_point():
        given = given.to(own.dtype)
    shape = data.public_images.shape[1:] if len(data.public_images) else data.train_images.shape[1:]
    if given.shape[1:] == shape[1:] and shape[0] == 1:
        given = given.unsqueeze(1)
    if given.shape[1:] != shape:
        allowed = ", ".join(map(str, shape))
        raise ValueError(f"The samples have shape {tuple(given.shape)}, not (n, {allowed}).")
    scaled = data.scaling(given)
    model = client_model(run, partition_id)
    with computing_in(configuration.run.training.precision, plan.device):
        logits = predict_logits(model.to(plan.device), scaled.to(plan.device))
    classes: NDArray[np.int64] = logits.argmax(dim=1).cpu().numpy()
    return classes


def soft_predictions(run: Run, server_round: int | None = None) -> NDArray[np.float32]:
    """Return what all clients' models predict on the public samples; see `Run.soft_predictions`."""
    rounds = len(run.round_rows)
    if server_round not in (None, rounds):
        raise ValueError(
            f"{run.path.name} keeps the models of round {rounds} alone. A run with the same "
            f"settings and num_server_rounds={server_round} ends with those of round "
            f"{server_round}."
        )
    configuration = recorded_config(run)
    plan = plan_of_data(run, configuration)
    public = load_client(plan, 0).public_images
    with computing_in(configuration.run.training.precision, plan.device):
        rows = [
            torch.softmax(predict_logits(model.to(plan.device), public).float(), dim=1).cpu()
            for model in models_of(run, configuration)
        ]
    predictions: NDArray[np.float32] = torch.stack(rows).numpy()
    return predictions


def models_of(
    run: Run,
    configuration: Configuration,
    models_dir: str = "",
    clients: Iterable[int] | None = None,
) -> Iterator[nn.Module]:
    """Yield the models of some clients, by default all, from files or the stored state.

    A model is valid until the next one is requested. Of files, some may be about models after the
    last distillation, see `distilled_clients`.
    """
    for name in changed_code(run, configuration.flat()):
        told = "The code of %s has changed since %s: its models may predict otherwise than then."
        log(WARNING, told, name, run.path.name)
    folder = models_dir or configuration.run.models_dir
    clients = range(configuration.run.plan.num_clients) if clients is None else clients
    if not folder:
        yield from _models_from_state(run, configuration, clients)
        return
    for n in clients:
        yield _exported_model(_file_of(folder, n), run, configuration)


def distilled_clients(
    configuration: Configuration, models_dir: str = "", clients: Iterable[int] | None = None
) -> list[int]:
    """Return the clients of which `models_of` yields the model after the last distillation.

    Its accuracy is the client's ``distilled_accuracy``.
    """
    folder = models_dir or configuration.run.models_dir
    clients = range(configuration.run.plan.num_clients) if clients is None else clients
    if not folder:
        return []
    return [n for n in clients if read_card(_file_of(folder, n)).get("evaluated") == "distilled"]


def _file_of(folder: str, partition_id: int) -> Path:
    return Path(folder).expanduser() / f"{partition_id}.safetensors"


def _exported_model(file: Path, run: Run, configuration: Configuration) -> nn.Module:
    """Read an exported model and check that it belongs to the run."""
    try:
        card = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        model = load_model(file, _custom_builders(card, configuration))
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise RunDirectoryError(f"{file} is not an exported model ({error}).") from None
    of_model = {name: card.get(name) for name in ("strategy", "dataset", "partition", "seed")}
    of_run = {name: run.config.get(name) for name in of_model}
    if of_model != of_run:
        raise RunDirectoryError(
            f"{file} is from another run ({of_model}) than {run.path.name} ({of_run}); give the "
            "folder of the run's models with --models-dir."
        )
    return model


def _custom_builders(card: Mapping[str, Any], configuration: Configuration) -> dict[str, Any]:
    """Return the builders of the custom models of a card, if the run's settings name them."""
    # A model file may come from an untrusted source, so its card alone must not import code.
    named = {*configuration.run.models.models, getattr(configuration.settings, "shared_model", "")}
    return {
        name: find_custom(name) if names_estimator(name) else find_callable(name, SIGNATURE)
        for name in map(str, (card["model"], card.get("shared-model", "")))
        if is_custom(name) and name in named
    }


def _models_from_state(
    run: Run, configuration: Configuration, clients: Iterable[int]
) -> Iterator[nn.Module]:
    """Yield the models from the clients' stored state, as they were evaluated."""
    record = configuration.run.method.record
    rounds = len(run.round_rows)
    export = "run again with models-dir=FOLDER (a sweep with save_models=True, or --save-models)"
    for n in clients:
        client = build_client(
            InProcessContext(configuration, 0, {"partition-id": n, **TRUSTED_NODE})
        )
        if not (record.evaluates_trained_model and client.keeps_model):
            raise RunDirectoryError(
                f"{run.path.name} has no exported models, and clients of "
                f"{configuration.run.strategy} do not store the evaluated model; {export}."
            )
        session = client.session
        folder = session.node.state_folder
        memory = MemoryFolder(folder / run.run_id).read(rounds + 1) if folder else None
        if memory is None:
            raise RunDirectoryError(
                f"{run.path.name} has neither exported models nor stored state of client {n}; "
                f"{export}."
            )
        session.memory.replace(memory)
        yield session.evaluated_model(rounds)
        session.close()


def client_genotypes(run: Run) -> list[Genotype]:
    """Read every client's genotype from its architecture weights after the last round.

    By partition-id. FedKMA keeps every edge with its strongest operation. Raises
    `RunDirectoryError` if the run has no architecture weights.
    """
    if ALPHAS not in run.matrices:
        raise RunDirectoryError(
            f"{run.path} has no architecture weights. Only runs of fedkma, fedkma-uniform and "
            "fednas with models = darts have them."
        )
    settings = recorded_config(run).run.models.search_space
    # Only the architecture weights are read, so the smallest network suffices.
    supernet = Supernet((1, 8, 8), 2, replace(settings, channels=1, cells=3))
    genotypes = []
    for alphas in run.matrices[ALPHAS][-1]:
        fill_from_vectors(supernet, {ALPHAS: alphas})
        genotypes.append(derive_genotype(supernet))
    return genotypes
