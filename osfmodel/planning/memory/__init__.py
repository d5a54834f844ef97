"""Plans that fit into a memory budget."""
