"""Training on private data: its settings, the local loop, and losses."""
