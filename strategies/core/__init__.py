"""What server and clients agree on, one idea a file; nothing here knows of a method."""
