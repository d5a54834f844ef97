"""The plan ``optimal``: exact merging, whatever the dtypes do."""

from __future__ import annotations

from osfmodel.cost import Cost
from osfmodel.solve import merge, mixed
from osfmodel.solve.contiguous import alternate
from osfmodel.solve.solution import Limits, Solution
from osfmodel.workload import Workload


def caveats(workload: Workload) -> tuple[str, ...]:
    """Said where the optimum is not proven."""
    gradients = workload.gradients
    if not alternate(gradients.dtypes) or mixed.exact_is_possible(gradients):
        return ()
    return ("with so many tensors of alternating dtypes the plan optimal is the best found, not proven to be the best",)


def solve(workload: Workload, cost: Cost, limits: Limits = Limits()) -> Solution:
    """The fastest plan of whole tensors, in ready order within each dtype, within ``limits``."""
    method = mixed.solve if alternate(workload.gradients.dtypes) else merge.solve
    return method(workload, cost, limits)
