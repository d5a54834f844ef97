"""The search for plans: workload, pricing, rules, limits -> Solution.

To add one: a module with ``solve`` and one line here, with ``searches`` where another plan may take the place of its
own. Its name is at once a named plan of ``osf predict``, and tests/conformance runs over the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from osfmodel.entities.plan import Objective
from osfmodel.solve.blocks.search import solve as solve_blocks
from osfmodel.solve.exact import optimal
from osfmodel.solve.published import asc_wfbp, byte_scheduler, mg_wfbp, us_byte
from osfmodel.solve.search import planned
from osfmodel.solve.solution import Case, Limits, Scheduler, Solution, Solver, Status

__all__ = ["SCHEDULERS", "SOLVERS", "Case", "Limits", "Scheduler", "Solution", "Solver", "Status"]

SOLVERS: Mapping[str, Solver] = {
    "mg-wfbp": Solver(mg_wfbp.solve, "merged-gradient WFBP as published (TPDS'21)"),
    "optimal": Solver(
        optimal.solve,
        "the exact optimum over plans of whole tensors in ready order",
        optimal.caveats,
        searches=True,
    ),
}
SCHEDULERS: Mapping[str, Scheduler] = {
    "asc-wfbp": Scheduler(asc_wfbp.solve, Objective(asc_wfbp.CHANNELS), "several at once, as released (INFOCOM'21)"),
    "byte-scheduler": Scheduler(
        byte_scheduler.solve,
        Objective(forward_overlap=True),
        "equal pieces by priority, with credit (SOSP'19)",
        byte_scheduler.caveats,
    ),
    "us-byte": Scheduler(us_byte.solve, Objective(forward_overlap=True), "unequal blocks, as released (TPDS)"),
    "blocks": Scheduler(
        solve_blocks,
        Objective(forward_overlap=True),
        "block sizes by linear programmes, tensors cut",
        searches=True,
        costly=True,
    ),
    "planned": Scheduler(
        planned.solve,
        Objective(forward_overlap=True),
        "the best found by several exact methods and local search",
        searches=True,
    ),
}
"""Solvers of what no stock framework does: several collectives at once, cut tensors, communication past the barrier."""
