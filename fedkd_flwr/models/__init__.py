"""Models by name, and the rules that give each client its model."""

from fedkd_flwr.models.assignment import ASSIGNMENTS, assign_models
from fedkd_flwr.models.registry import DARTS_MODELS, MODELS, build_model, num_parameters

__all__ = [
    "ASSIGNMENTS",
    "DARTS_MODELS",
    "MODELS",
    "assign_models",
    "build_model",
    "num_parameters",
]
