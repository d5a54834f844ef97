"""Tables of layers -> workloads."""
