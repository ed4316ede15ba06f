"""Tables, figures and pages of the published runs: ``python -m results``."""
