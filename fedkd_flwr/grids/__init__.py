"""Wrappers of Flower's grids, and a grid that runs clients in this process."""
