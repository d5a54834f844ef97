"""What needs PyTorch: profiling a model, measuring the wires, running a plan. torch is imported inside functions."""
