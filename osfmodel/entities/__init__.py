"""Frozen, checked data in SI units, pure functions between them, and our own files."""
