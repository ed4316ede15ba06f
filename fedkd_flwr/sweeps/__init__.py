"""Sweeps: many runs from one TOML file or Python values, which can be stopped and continued."""

from fedkd_flwr.sweeps.folder import sweep_folder
from fedkd_flwr.sweeps.grid import read_sweep, refuse_replaced_values, run_name
from fedkd_flwr.sweeps.running import SweepProgress, run_sweep, sweep
