"""Algorithms of others, as published."""
