"""The result of ``osf explain``."""
