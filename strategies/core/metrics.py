"""Numbers that clients of several methods report."""

from strategies.core.replies import Metric

TRAIN_LOSS = Metric("train-loss")
"""Mean loss on private data over all samples seen."""

MOVED_PRIVATE = Metric("moved-private", low=0)
"""How far private training has moved the weights, relative to their norm."""

MOVED_PUBLIC = Metric("moved-public", low=0)
"""How far what came from the others has moved the weights, relative to their norm."""

GLOBAL_ACCURACY = Metric("global-accuracy", averaged=False, low=0, high=1)
"""Accuracy of the global model on the client's test split, beside that of the personal one."""
