"""Personalized models as files: written, and used on new images."""

from fedkd_flwr.export.files import (
    distilled_folder,
    exported_models,
    is_better,
    keep_chosen,
    keep_only_best,
    load_model,
    model_card,
    models_of_round,
    read_card,
    round_folder,
    save_personalized_model,
)

__all__ = [
    "distilled_folder",
    "exported_models",
    "is_better",
    "keep_chosen",
    "keep_only_best",
    "load_model",
    "model_card",
    "models_of_round",
    "read_card",
    "round_folder",
    "save_personalized_model",
]
