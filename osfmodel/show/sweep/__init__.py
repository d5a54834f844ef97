"""The result of ``osf sweep``."""
