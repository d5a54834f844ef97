"""The result of ``osf check``."""
