"""Block sizes by linear programmes, with tensors that may be cut."""
