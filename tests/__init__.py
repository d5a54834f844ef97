"""Tests of osfmodel. Their processes share the cores, and threads that wait for one another take longer than none."""

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # read when NumPy and PyTorch are imported: after this
    os.environ.setdefault(name, "1")
