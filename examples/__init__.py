"""Examples of bringing one's own: a model, a method, data."""
