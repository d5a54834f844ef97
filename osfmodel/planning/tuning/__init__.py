"""Tuning: the settings of a framework, or of any, that form the best plan; remarks on them, and lines to launch it."""
