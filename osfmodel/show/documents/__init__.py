"""Results in each format that a command writes: table, JSON, CSV, lines to paste."""
