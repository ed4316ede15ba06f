"""The trackers by name, known without loading any."""

TRACKERS = {
    "tensorboard": "fedkd_flwr.trackers.tensorboard:TensorBoard",
    "wandb": "fedkd_flwr.trackers.wandb:WeightsAndBiases",
    "mlflow": "fedkd_flwr.trackers.mlflow:MLflow",
}
"""What writes to each.

A name is also that of the extra that installs the tracker, of the module that it is, and of the
folder in the run directory that it writes to.
"""
