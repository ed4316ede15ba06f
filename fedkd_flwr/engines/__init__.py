"""Engines: where clients run. In this process, in Flower's Ray simulation, or on nodes."""

from fedkd_flwr.engines.deployment import deployed_to, run_deployment
from fedkd_flwr.engines.in_process import InProcessGrid, flower_log_level
from fedkd_flwr.engines.starting import (
    check_engine,
    find_engine,
    resolve_output,
    resume,
    resumed,
    run,
    run_configuration,
    with_absolute_folders,
    with_natural_clients,
)
