"""The line that the authors of MG-WFBP, and of later rules, fit to the price of a message."""

from __future__ import annotations

import numpy as np

from osfmodel.cost.shapes import AffineCost, Cost

REGRESSION_SIZES = tuple(32 * 1024 * i for i in range(1, 65))
"""Sizes, 32 KiB to 2 MiB in 64 steps, at which the authors' code measures a and b of a real network."""


def linear(cost: Cost) -> tuple[float, float]:
    """(a, b) of a + b * bytes: exact for one line, otherwise the authors' linear regression over 32 KiB to 2 MiB."""
    if isinstance(cost, AffineCost) and len(cost.pieces) == 1:
        return cost.pieces[0]
    sizes = np.array(REGRESSION_SIZES, dtype=float)
    per_byte, startup = np.polyfit(sizes, cost(sizes), 1)
    return max(float(startup), 0.0), max(float(per_byte), 0.0)
