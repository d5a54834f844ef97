"""The plan ``optimal``: exact merging, whatever the dtypes do."""

from __future__ import annotations

from osfmodel.cost import Cost
from osfmodel.solve import merge, mixed
from osfmodel.solve.contiguous import alternate
from osfmodel.solve.solution import Limits, Solution
from osfmodel.workload import Workload


def solve(workload: Workload, cost: Cost, limits: Limits = Limits()) -> Solution:
    """The fastest plan of whole tensors, in ready order within each dtype, within ``limits``."""
    method = mixed.solve if alternate(workload.gradients.dtypes) else merge.solve
    return method(workload, cost, limits)
