"""Processes that train or measure together: their meeting, their ends, and their collectives."""
