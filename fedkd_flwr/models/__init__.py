"""Models by name, and the rules that give each client its model.

Everything is imported from its own module, so that a run config is read without PyTorch.
"""
