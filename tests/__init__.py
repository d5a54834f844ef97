"""Tests of osfmodel. Their processes share the cores, and threads that wait for one another take longer than none."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is first imported, which is after this
