"""Results on a terminal: tables, bars and pictures for a person."""
