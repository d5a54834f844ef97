"""The search for plans: workload, pricing, rules, limits -> Solution.

To add one: a module with ``solve`` and a RULE, and one line here, with ``searches`` if another plan may take the
place of its own. Its name is also a named plan of ``osf predict``, and tests/conformance runs over the table.
"""

from __future__ import annotations

from osfmodel.entities.lookup import LateTable
from osfmodel.solve.solution import Case, Limits, Planner, PlanRule, Question, Solution, Status, answer, planner_of

__all__ = ["SOLVERS", "Case", "Limits", "PlanRule", "Planner", "Question", "Solution", "Status", "answer", "planner_of"]

SOLVERS: LateTable[PlanRule] = LateTable(
    {
        "mg-wfbp": "solve.published.mg_wfbp:RULE",
        "optimal": "solve.exact.optimal:RULE",
        "asc-wfbp": "solve.published.asc_wfbp:RULE",
        "byte-scheduler": "solve.published.byte_scheduler:RULE",
        "us-byte": "solve.published.us_byte:RULE",
        "blocks": "solve.blocks:RULE",
        "planned": "solve.search.planned:RULE",
        "sharded": "solve.search.sharded:RULE",
    }
)
"""Planning rules, published ones and our own; among these, optimal is for plans that stock frameworks can form."""
