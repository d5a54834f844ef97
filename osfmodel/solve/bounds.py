"""A time that no schedule can beat.

Gradients i, i+1, ... L in ready order hold S_i bytes and none of them is ready before r_i, so whatever the order, the
grouping or the cutting, S_i bytes cross the one channel after r_i. A message that carries m of them takes at least
floor(m), the cheapest message of m bytes or more, hence at least min_{m <= S_i} floor(m)/m seconds per byte:

    t_comm >= max_i [ r_i + S_i * min_{0 < m <= S_i} floor(m) / m ]

For an affine or any concave cost the minimum is at m = S_i and the bound is max_i r_i + T(S_i), model.md section 5.2's
LB. For a table with jumps it uses the best bandwidth that was measured at or below S_i.
"""

from __future__ import annotations

from itertools import accumulate

from osfmodel.cost import Cost
from osfmodel.workload import Gradients, Workload


def iteration_bound(workload: Workload, cost: Cost) -> float:
    """No schedule with one channel and a barrier before the update takes less than this many seconds."""
    backward_end = workload.forward_time + workload.backward_time
    return max(backward_end, communication_bound(workload.gradients, cost)) + workload.update_time


def communication_bound(gradients: Gradients, cost: Cost) -> float:
    """No schedule on one channel has communicated everything before this many seconds into the iteration."""
    floor = cost.floor
    knots = cost.breakpoints
    best_rates = list(accumulate((floor(size) / size for size in knots), min))
    bound: float = 0
    suffix = 0
    knot = 0
    for size, ready in zip(reversed(gradients.sizes), reversed(gradients.ready_times), strict=True):
        suffix += size
        while knot < len(knots) and knots[knot] <= suffix:
            knot += 1
        shortest = floor(suffix)
        if knot:
            shortest = min(shortest, suffix * best_rates[knot - 1])
        bound = max(bound, ready + shortest)
    return bound
