"""Trackers of experiments: TensorBoard, Weights & Biases, MLflow, each with a run's rounds."""
