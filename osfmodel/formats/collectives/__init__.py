"""Logs and tables of collectives -> clusters."""
