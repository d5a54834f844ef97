"""Named plans: the same names everywhere, each with the rule that makes it and what it means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from osfmodel.cost import Cost
from osfmodel.errors import UsageError
from osfmodel.plan import Plan, contiguous_plan, grouped_plan
from osfmodel.solve import SOLVERS, Limits, Solver
from osfmodel.targets import CONFIG_TARGETS, Target
from osfmodel.workload import Workload

Rule: TypeAlias = Callable[[Workload, Cost], Plan]


class NamedPlan(NamedTuple):
    """rule:    (workload, cost) -> plan
    meaning: half a line for a person
    caveats: what a prediction under it takes for granted
    """

    rule: Rule
    meaning: str
    caveats: Callable[[Workload], tuple[str, ...]] = lambda workload: ()


def one_each(workload: Workload, cost: Cost) -> Plan:
    """One collective per tensor."""
    return contiguous_plan(workload, list(range(1, len(workload.gradients) + 1)))


def single(workload: Workload, cost: Cost) -> Plan:
    """Everything in one message; one per dtype where there are several, since types do not mix."""
    dtypes = workload.gradients.dtypes
    groups: list[list[int]] = [[i for i, dtype in enumerate(dtypes) if dtype == kind] for kind in dict.fromkeys(dtypes)]
    groups.sort(key=lambda group: group[-1])
    return grouped_plan(workload, groups)


def _by_default(target: Target) -> Rule:
    return lambda workload, cost: target.realise(target.default_knobs(), workload, cost)


def _by_solver(solver: Solver) -> Rule:
    return lambda workload, cost: solver.solve(workload, cost, Limits()).require()[0]


def _table() -> dict[str, NamedPlan]:
    table = {
        "wfbp": NamedPlan(one_each, "one collective per tensor, as soon as it is ready (wait-free backpropagation)"),
        "single": NamedPlan(single, "all gradients in one collective after backward"),
    }
    for name, target in CONFIG_TARGETS.items():
        table[name] = NamedPlan(_by_default(target), target.meaning, target.caveats)
    for name, solver in SOLVERS.items():
        table[name] = NamedPlan(_by_solver(solver), solver.meaning, solver.caveats)
    expected = 2 + len(CONFIG_TARGETS) + len(SOLVERS)
    if len(table) != expected:
        raise AssertionError("two plans have the same name: rename a solver or a target")
    return table


NAMED_PLANS: Mapping[str, NamedPlan] = _table()


def named_plan(name: str) -> NamedPlan:
    """The entry called ``name``. Raises UsageError for a name that is not in NAMED_PLANS."""
    from difflib import get_close_matches

    if name in NAMED_PLANS:
        return NAMED_PLANS[name]
    near = get_close_matches(name, NAMED_PLANS, n=1)
    advice = f"did you mean {near[0]}?" if near else f"known are {', '.join(NAMED_PLANS)}, or give a plan file"
    raise UsageError(f"unknown plan {name!r}: {advice}")
