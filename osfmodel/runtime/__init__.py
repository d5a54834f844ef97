"""What needs PyTorch: measure a model and the wires, and run plans in real training. Only the command line imports it.

torch is imported inside functions, so that everything else works without it.
"""

from __future__ import annotations
