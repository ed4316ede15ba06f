"""A method and data of a study."""
