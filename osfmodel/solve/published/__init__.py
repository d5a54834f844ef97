"""Published algorithms of others."""
