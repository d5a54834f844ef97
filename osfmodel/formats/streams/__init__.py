"""Compressed, packed and very long files, read piece by piece in bounded memory."""
