"""What the tables of results have in common, whatever shows them."""
