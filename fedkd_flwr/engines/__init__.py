"""Engines: where clients run. In this process, in Flower's Ray simulation, or on nodes."""

from fedkd_flwr.engines.deployment import deployed_to, run_deployment
from fedkd_flwr.engines.in_process import flower_log_level
from fedkd_flwr.engines.registry import check_engine, find_engine
from fedkd_flwr.engines.starting import (
    resolve_output,
    resume,
    resumed,
    run,
    run_configuration,
    with_absolute_folders,
    with_natural_clients,
)
from fedkd_flwr.grids.in_process import InProcessGrid

__all__ = [
    "InProcessGrid",
    "check_engine",
    "deployed_to",
    "find_engine",
    "flower_log_level",
    "resolve_output",
    "resume",
    "resumed",
    "run",
    "run_configuration",
    "run_deployment",
    "with_absolute_folders",
    "with_natural_clients",
]
