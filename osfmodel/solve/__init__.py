"""Solvers: SOLVERS maps a name to (workload, cost, limits) -> Solution.

To add one: a module with ``solve`` and one line here. Its name is at once a named plan of ``osf predict``, and
tests/conformance runs over the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from osfmodel.cost import Cost
from osfmodel.solve import merge, mg_wfbp
from osfmodel.solve.solution import Limits, Solution, Status
from osfmodel.workload import Workload

__all__ = ["SOLVERS", "Limits", "Solution", "Solver", "Status"]

Solver: TypeAlias = Callable[[Workload, Cost, Limits], Solution]

SOLVERS: Mapping[str, Solver] = {
    "mg-wfbp": mg_wfbp.solve,
    "optimal": merge.solve,
}
