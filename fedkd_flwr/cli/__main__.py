"""``python -m fedkd_flwr.cli``."""

from fedkd_flwr.cli import app

app()
