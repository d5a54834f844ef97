"""Block sizes by linear programmes: tensors may be cut."""
