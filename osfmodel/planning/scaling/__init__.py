"""Scaling: times, strategies, goals and prices over numbers of GPUs."""
