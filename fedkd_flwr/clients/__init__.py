"""Client side of every method: NumPyClients, one module a method."""
