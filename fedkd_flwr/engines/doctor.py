"""Check on a node, before a run, whether it can take part.

The checks use the same client code as the run, so they give the same results. They are stricter in
one point: a run also takes a ``partition-id`` or ``keep-runs`` that is written as text, ``"0"``.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, RecordDict

from fedkd_flwr.client_app import build_client
from fedkd_flwr.clients.base import PersonalClient
from fedkd_flwr.clients.estimators import EstimatorClient
from fedkd_flwr.clients.node import check_keys, with_known_clients
from fedkd_flwr.clients.policy import (
    DEFAULT_SPLIT,
    NOISED,
    NodeConfigError,
    PolicyError,
    has_noise,
    read_policy,
)
from fedkd_flwr.clients.soft_predictions import SoftPredictionClient
from fedkd_flwr.config import read_config
from fedkd_flwr.data.clients import hash_of_public_pool, public_pool
from fedkd_flwr.data.folders import class_names, hash_of_names
from fedkd_flwr.data.public import require_pool
from fedkd_flwr.models.build import num_parameters
from fedkd_flwr.runs import require_writable
from fedkd_flwr.training.loop import try_step
from fedkd_flwr.training.losses import cross_entropy
from strategies.core.method_record import Need


@dataclass(frozen=True)
class Finding:
    """The result of one check of a node."""

    check: str
    ok: bool
    text: str


def check_node(run_config: Mapping[str, Any], node_config: Mapping[str, Any]) -> list[Finding]:
    """Check everything that a node needs for a run: policy, config, data, model, folders."""
    findings = [_found("policy", lambda: _check_policy(run_config, node_config))]
    if not findings[0].ok:
        return findings
    try:
        configuration = read_config(with_known_clients(run_config, node_config))
    except ValueError as error:
        return [*findings, Finding("run config", False, str(error))]
    flat = configuration.flat()
    findings.append(_found("node config", lambda: _check_config(node_config, flat)))
    if not findings[-1].ok:
        return findings
    try:
        client = build_client(Context(0, 0, dict(node_config), RecordDict(), flat))
    except (PolicyError, NodeConfigError) as error:
        return [*findings, Finding("policy", False, str(error))]
    findings.append(_found("privacy", lambda: _check_privacy(client)))
    needs_public_data = Need.PUBLIC_DATA in client.session.run.method.record.needs
    findings.append(_found("device", lambda: _check_device(client)))
    findings.append(_found("data", lambda: _check_data(client)))
    if needs_public_data:
        findings.append(_found("public set", lambda: _check_public_set(client)))
    if all(finding.ok for finding in findings):
        findings.append(_found("model", lambda: _check_model(client)))
    node, forgets = client.session.node, "none: the node forgets its model when it restarts"
    findings.append(_found("state-dir", lambda: _folder("state-dir", node.state_folder, forgets)))
    stays = "none: the personalized model is not exported"
    findings.append(_found("models-dir", lambda: _folder("models-dir", node.models_folder, stays)))
    return findings


def _found(check: str, examine: Callable[[], str]) -> Finding:
    try:
        return Finding(check, True, examine())
    # Any error here would also occur in the run.
    except Exception as error:
        return Finding(check, False, f"{error or type(error).__name__}")


def _check_policy(run_config: Mapping[str, Any], node_config: Mapping[str, Any]) -> str:
    policy = read_policy(node_config)
    policy.check_names(run_config, str(node_config.get("data-path", "")))
    return policy.described()


def _check_config(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> str:
    check_keys(node_config)
    partition_id, clients = node_config.get("partition-id"), run_config["num-clients"]
    if not isinstance(partition_id, int) or not 0 <= partition_id < clients:
        raise ValueError(f"partition-id is {partition_id!r}; it must be one of 0..{clients - 1}")
    keep_runs = node_config.get("keep-runs", 0)
    if not isinstance(keep_runs, int) or keep_runs < 0:
        raise ValueError(f"keep-runs is {keep_runs!r}; it must be 0 or a number of runs")
    return f"partition {partition_id} of {clients}"


def _check_privacy(client: PersonalClient) -> str:
    told, policy, ledger = _of_releases(client), client.session.policy, client.session.node.ledger
    if policy.allow_counts != NOISED or ledger is None:
        return told
    return (
        f"{told}; counts: epsilon {ledger.epsilon_of_counts:.2f} of {policy.count_budget:g} spent"
    )


def _of_releases(client: PersonalClient) -> str:
    policy, ledger = client.session.policy, client.session.node.ledger
    if client.session.run.method.record.family == "nothing":
        return "the method exchanges nothing"
    if not has_noise(client.session.run, client.settings):
        return "Warning: what the method sends leaves without noise, as the node config allows"
    if ledger is None:
        return "noise; no ledger, as the node has no state-dir"
    told = (
        f"epsilon {ledger.epsilon:.2f} for predictions and {ledger.epsilon_of_training:.2f} for "
        f"trainings, of {policy.epsilon_budget:g} each, spent by earlier rounds"
    )
    try:
        for entry in _ledger_entries(client):
            ledger.check(entry)
    except PolicyError:
        raise ValueError(
            f"{told}, and one more round of this run would exceed it; raise epsilon-budget in the "
            "node config, or choose a run with more noise"
        ) from None
    return told


def _ledger_entries(client: PersonalClient) -> Iterator[dict[str, float]]:
    """Yield what a training and a release add to the node's ledger; nothing without noise."""
    if of_training := client.session.local.ledger_entry(client.data.num_train):
        yield of_training
    if isinstance(client, SoftPredictionClient) and (of_release := client.release_entry):
        yield of_release


def _check_device(client: PersonalClient) -> str:
    torch.zeros(1, device=client.device)
    if not client.device.startswith("cuda"):
        return f"{client.device}, {torch.get_num_threads()} threads"
    free, total = torch.cuda.mem_get_info(client.device)
    name = torch.cuda.get_device_name(client.device)
    return f"{client.device}, {name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"


def _check_data(client: PersonalClient) -> str:
    data = client.data
    names = class_names(
        client.session.node.data_path, data.classes, client.session.run.data.label_column
    )
    numbers = [str(k) for k in range(data.classes)]
    labels = [f"{k} ({name})" for k, name in enumerate(names)] or numbers
    counted = zip(labels, data.class_counts.tolist(), strict=True)
    counts = ", ".join(f"{label}: {count}" for label, count in counted)
    source = (
        client.session.context.node_config.get("data-path")
        or f"a share of {client.session.run.data.dataset}"
    )
    told = f"; classes-hash {hash_of_names(names)}" if names else ""
    sizes = f"{data.described()}; training samples by class {counts}"
    return f"{source}: {sizes}{told}{_warning(client)}"


def _warning(client: PersonalClient) -> str:
    """Return a warning if most samples of a node would not be used for training."""
    data, split = client.data, client.session.run.data.split
    train, *others = data.positions
    if len(train) >= len(np.unique(np.concatenate(others))):
        return ""
    return (
        f". Warning: client-split = {split} trains on less than half of the samples; "
        f"a usual choice is {DEFAULT_SPLIT}"
    )


def _check_public_set(client: PersonalClient) -> str:
    run = client.session.run
    size = len(public_pool(client.session.data_plan))
    require_pool(size, run.plan.public_size)
    found = hash_of_public_pool(client.session.data_plan)
    if run.plan.public_hash and found != run.plan.public_hash:
        raise ValueError(f"public-hash is {found}, and the run's is {run.plan.public_hash}")
    return f"{size} samples, public-hash {found}"


def _check_model(client: PersonalClient) -> str:
    """Try the model; it is then discarded."""
    name, run = client.session.model_name, client.session.run
    shared = run.models.models[0]
    if Need.ONE_ARCHITECTURE in run.method.record.needs and name != shared:
        raise ValueError(
            f"the node's model is {name}, and {run.strategy} needs the run's, {shared}"
        )
    return f"{name}, {_tried(client)}"


def _tried(client: PersonalClient) -> str:
    """Take one training step with a new model as in a round, or fit one, and say how it went."""
    session, data = client.session, client.data
    if isinstance(client, EstimatorClient):
        client.refit()
        fitted = cross_entropy(client.model, data.train_images, data.train_labels)
        return f"fitted; the training samples have loss {fitted.item():.3f}"
    model, batch = session.new_model(), next(client.private_batches(1))
    optimizer = session.local.optimizer(model.parameters(), server_round=1)
    loss = try_step(model, batch, "model", optimizer)
    if not math.isfinite(loss):
        raise ValueError(f"{session.model_name}: the loss of the first batch is {loss}")
    return f"{num_parameters(model):,} numbers; the first batch has loss {loss:.3f}"


def _folder(name: str, folder: Path | None, nowhere: str) -> str:
    if folder is None:
        return nowhere
    require_writable(folder, name)
    return f"{folder} can be written"
