"""Metrics that the clients of several methods report."""

from strategies.core.replies import Metric

TRAIN_LOSS = Metric("train-loss")
"""Mean training loss over all private samples of the round."""

MOVED_PRIVATE = Metric("moved-private", low=0)
"""Change of the weights by private training, relative to their norm."""

MOVED_PUBLIC = Metric("moved-public", low=0)
"""Change of the weights by knowledge of other clients, relative to their norm."""

GLOBAL_ACCURACY = Metric("global-accuracy", averaged=False, low=0, high=1)
"""Accuracy of the global model on the client's test split."""
