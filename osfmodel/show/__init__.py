"""Results as documents (JSON, CSV, YAML), on the terminal, as pictures, HTML and Chrome traces; computes nothing."""
