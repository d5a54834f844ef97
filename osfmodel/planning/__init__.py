"""Looks ahead: predict, compare, what-if, sweep, tune, remedies, and how to launch what was found."""
