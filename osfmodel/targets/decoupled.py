"""Groups of DeAR (ICDCS'23), for the named plan ``decoupled``: modules in forward order, fused up to a threshold.

A group is closed before the module with which it would hold the threshold or more, counted in 4 bytes for each element
(``dear/dopt_rsag.py``). Each dtype is walked by itself. A reduce-scatter goes out as its last gradient is ready.
"""

from __future__ import annotations

from itertools import groupby

from osfmodel.entities.modules import module_of
from osfmodel.entities.plan import Objective, Plan, grouped_plan
from osfmodel.entities.units import MIB
from osfmodel.entities.workload import Workload
from osfmodel.solve.caps import in_elements
from osfmodel.solve.solution import PlanRule, planner_of

THRESHOLD = 25 * MIB
COUNTED = 4
"""Bytes that each element counts."""
OBJECTIVE = Objective(forward_overlap=True, strategy="decoupled")


def groups_of(workload: Workload, threshold: int = THRESHOLD) -> list[list[int]]:
    """The groups, as positions of gradients in ready order, in the order in which they are ready."""
    gradients = in_elements(workload.gradients)
    found: list[list[int]] = []
    for chain in gradients.chains:
        held = 0
        for _, positions in groupby(reversed(chain), key=lambda item: module_of(gradients.names[item])):
            members = list(positions)
            size = COUNTED * sum(gradients.sizes[item] for item in members)
            if held and held + size < threshold:
                found[-1] += members
                held += size
            else:
                found.append(members)
                held = size
    return sorted((sorted(group) for group in found), key=max)


def plan_of(workload: Workload) -> Plan:
    """The plan of the groups with the default threshold."""
    return grouped_plan(workload, groups_of(workload)).under(OBJECTIVE)


RULE = PlanRule(
    planner_of(lambda workload, pricing: plan_of(workload)),
    "DeAR with its default threshold, 25 MiB: reduce-scatters in backward, all-gathers in the next forward",
    objective=OBJECTIVE,
    serves=lambda objective: objective == OBJECTIVE,
    on_request=True,
    unpriced=True,
)
