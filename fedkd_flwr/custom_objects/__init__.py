"""Custom objects: methods, models, data sets and partitions that the project does not ship."""
