"""One module per source of measured runs."""
