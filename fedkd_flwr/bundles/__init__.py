"""App bundles on a node: which are approved, and that no other is executed."""
