"""Training on one client: jobs, the loop that does them, losses, regularizers, optimizers."""
