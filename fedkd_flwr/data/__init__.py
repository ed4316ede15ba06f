"""Data: data sets, their splits over clients, the public set, and what one client holds.

Everything is imported from its own module, so that a run config is read without PyTorch.
"""
