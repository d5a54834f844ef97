"""Processes that train or measure together: ranks, and one job of collectives."""
