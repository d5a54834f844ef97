"""A sweep: predictions for every combination of a grid, each a flat record, written as they come."""
