"""Our own files: documents, bundled profiles, the short notation of plans."""

LARGEST_FILE = 64 * 2**20
"""Bytes that a file of ours, or a log, may have."""
