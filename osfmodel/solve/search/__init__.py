"""The best plan found by several exact methods and local search."""
