"""The result of ``osf scale``."""
