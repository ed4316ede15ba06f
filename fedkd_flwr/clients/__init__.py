"""Client side of the methods: NumPyClients, one module per method."""
