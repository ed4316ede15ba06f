"""Tuning: the same search for the settings of every method, on validation data only."""

from fedkd_flwr.tuning.tuning import Tuned, Tuning, tune
