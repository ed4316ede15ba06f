"""Flower's grids, asked in the ways that suit these methods, and one without a network."""
