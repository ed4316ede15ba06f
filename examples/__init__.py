"""Examples of custom models, data, partitions and methods."""
