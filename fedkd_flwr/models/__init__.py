"""Models by name, and the rules that give each client its model."""

from fedkd_flwr.models.assignment import ASSIGNMENTS, assign_models
from fedkd_flwr.models.registry import MODELS, build_model, num_parameters

__all__ = ["ASSIGNMENTS", "MODELS", "assign_models", "build_model", "num_parameters"]
