"""Logs that trainers write: the steps of a run, or its rate, after the warm-up."""
