"""Our own files: documents, bundled profiles, the short notation of plans."""

LARGEST_FILE = 64 * 2**20
"""Largest size in bytes of a file of ours, or of a log."""
