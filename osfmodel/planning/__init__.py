"""Looks ahead: predict, compare, what-if, tune, remedies, and how to launch the tuned plan."""
