"""Solvers: SOLVERS maps a name to a function (workload, cost, limits) -> Solution and what it is.

To add one: a module with ``solve`` and one line here. Its name is at once a named plan of ``osf predict``, and
tests/conformance runs over the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from osfmodel.objective import Objective
from osfmodel.solve import mg_wfbp, optimal, planned
from osfmodel.solve.solution import Limits, Scheduler, Solution, Solver, Status

__all__ = ["SCHEDULERS", "SOLVERS", "Limits", "Scheduler", "Solution", "Solver", "Status"]

SOLVERS: Mapping[str, Solver] = {
    "mg-wfbp": Solver(mg_wfbp.solve, "merged-gradient WFBP as published (TPDS'21)"),
    "optimal": Solver(optimal.solve, "the exact optimum over plans of whole tensors in ready order", optimal.caveats),
}
SCHEDULERS: Mapping[str, Scheduler] = {
    "planned": Scheduler(
        planned.solve, Objective(forward_overlap=True), "the best found by several exact methods and local search"
    ),
}
"""Solvers of what no stock framework does: several collectives at once, cut tensors, communication past the barrier."""
