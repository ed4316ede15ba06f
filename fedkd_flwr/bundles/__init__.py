"""App bundles on a node: the list of approved ones, and a guard against others."""
