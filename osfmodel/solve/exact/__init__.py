"""Plans that are proven to be the best, and the searches that prove it."""
