"""The density of a sparse bucket: the fraction of its elements that it sends."""

from __future__ import annotations

import math

from osfmodel.entities.errors import PlanError


def top_k(elements: int, density: float) -> int:
    """Number of ``elements`` that a sparse bucket sends: the density times their number, rounded up."""
    return min(elements, math.ceil(density * elements))


def require_density(density: float) -> None:
    """Raise PlanError unless the density is above 0 and at most 1."""
    if isinstance(density, bool) or not isinstance(density, int | float) or not 0 < density <= 1:
        raise PlanError(
            f"the density is {density!r}: it must be above 0, since nothing would be sent, and at most 1, since no "
            "tensor has more elements than it has"
        )
