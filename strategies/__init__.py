"""Server side of every method: Flower strategies, one module per method.

Strategies work on the arrays in clients' replies and can be used in any Flower app. They do not
depend on models, data sets or run directories.
"""
