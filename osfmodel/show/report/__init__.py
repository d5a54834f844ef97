"""The result of ``osf report``."""
