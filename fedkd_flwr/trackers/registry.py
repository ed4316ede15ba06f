"""The trackers by name; no tracker is imported."""

TRACKERS = {
    "tensorboard": "fedkd_flwr.trackers.tensorboard:TensorBoard",
    "wandb": "fedkd_flwr.trackers.wandb:WeightsAndBiases",
    "mlflow": "fedkd_flwr.trackers.mlflow:MLflow",
}
"""The class that writes to each tracker.

Its name is also the name of the extra, of the tracker's package, and of its folder in the run
directory.
"""
