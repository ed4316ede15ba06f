"""Server side of every method: Flower strategies, one module a method.

Nothing here knows of models, data sets or run directories: a strategy works on the
arrays that clients reply with, and can be used in any Flower app.
"""
