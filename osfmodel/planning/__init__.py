"""Planning: predict, compare, what-if, tune, remedies, and the launch of a tuned plan."""
