"""The search for plans: workload, pricing, rules, limits -> Solution.

To add one: a module with ``solve`` and one line here, with ``searches`` where another plan may take the place of its
own. Its name is at once a named plan of ``osf predict``, and tests/conformance runs over the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from osfmodel.entities.plan import PLAIN, Objective
from osfmodel.solve.blocks.search import solve as solve_blocks
from osfmodel.solve.exact import optimal
from osfmodel.solve.published import asc_wfbp, byte_scheduler, mg_wfbp, us_byte
from osfmodel.solve.search import planned
from osfmodel.solve.solution import Case, Limits, Planner, PlanRule, Question, Solution, Status, answer, planner_of

__all__ = ["SOLVERS", "Case", "Limits", "PlanRule", "Planner", "Question", "Solution", "Status", "answer", "planner_of"]

OVERLAP = Objective(forward_overlap=True)
SOLVERS: Mapping[str, PlanRule] = {
    "mg-wfbp": PlanRule(
        mg_wfbp.solve,
        "merged-gradient WFBP as published (TPDS'21)",
        serves=PLAIN.permits,
    ),
    "optimal": PlanRule(
        optimal.solve,
        "the exact optimum over plans of whole tensors in ready order",
        optimal.caveats,
        serves=PLAIN.permits,
        searches=True,
    ),
    "asc-wfbp": PlanRule(
        asc_wfbp.solve,
        "several at once, as released (INFOCOM'21)",
        objective=Objective(asc_wfbp.CHANNELS),
    ),
    "byte-scheduler": PlanRule(
        byte_scheduler.solve,
        "equal pieces by priority, with credit (SOSP'19)",
        byte_scheduler.caveats,
        OVERLAP,
    ),
    "us-byte": PlanRule(us_byte.solve, "unequal blocks, as released (TPDS)", objective=OVERLAP),
    "blocks": PlanRule(
        solve_blocks,
        "block sizes by linear programmes, tensors cut",
        objective=OVERLAP,
        searches=True,
        chooses=True,
        on_request=True,
    ),
    "planned": PlanRule(
        planned.solve,
        "the best found by several exact methods and local search",
        objective=OVERLAP,
        searches=True,
        chooses=True,
    ),
}
"""By rules of others as published, and by our own; of the latter, optimal is for what stock frameworks do."""
