"""Personalized models as files: written, approved by an operator, and used on new images."""

from fedkd_flwr.export.files import (
    keep_only_best,
    load_model,
    model_card,
    models_of_round,
    read_card,
    round_folder,
    save_personalized_model,
)

__all__ = [
    "keep_only_best",
    "load_model",
    "model_card",
    "models_of_round",
    "read_card",
    "round_folder",
    "save_personalized_model",
]
