"""Models by name, and the rules that assign models to clients.

Import names from their own modules, so that a run config can be read without PyTorch.
"""
