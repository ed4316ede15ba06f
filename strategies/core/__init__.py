"""Protocol and tools shared by server and clients, independent of any method."""
