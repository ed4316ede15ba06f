"""Three silos with a table and models of different kinds: forest, boosting, network.

uv run python -m examples.three_silos
"""

from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer

import fedkd_flwr

SETTINGS: dict[str, Any] = {
    "dataset": "examples.three_silos:tumors",
    "num-clients": 3,
    "partition": "iid",
    "client-split": "15/0/85",
    "held-out-size": 200,
    "public-size": 200,
    "models": "sklearn.ensemble:RandomForestClassifier,"
    "sklearn.ensemble:HistGradientBoostingClassifier,examples.own_data:Perceptron",
    "estimator-options": "RandomForestClassifier = {n_estimators = 50}, "
    "HistGradientBoostingClassifier = {max_iter = 30, min_samples_leaf = 5}",
    "num-server-rounds": 5,
    "torch-threads": 1,
}


def tumors() -> tuple[np.ndarray, np.ndarray]:
    """Return 569 tumors, 30 columns of mean 0 and deviation 1, and whether each is benign."""
    samples, labels = load_breast_cancer(return_X_y=True)
    return (samples - samples.mean(axis=0)) / samples.std(axis=0), labels


def accuracies(strategy: str, **settings: Any) -> dict[str, float]:
    """Return the accuracy of every silo's model after the last round, by the model."""
    run = fedkd_flwr.run({**SETTINGS, "strategy": strategy}, **settings)
    last = run.clients[run.clients["round"] == run.clients["round"].max()]
    return dict(zip(last["model"], last["accuracy"], strict=True))


if __name__ == "__main__":
    alone, together = accuracies("local"), accuracies("kt-pfl")
    for model, accuracy in alone.items():
        print(
            f"{model.rpartition(':')[2]:32} {accuracy:6.1%} alone {together[model]:6.1%} together"
        )
