"""What a configuration target is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from osfmodel.cost import Cost
from osfmodel.cost.curves import FREE
from osfmodel.errors import PlanError
from osfmodel.plan import Plan
from osfmodel.solve import Limits
from osfmodel.workload import Workload


@dataclass(frozen=True, slots=True)
class Target:
    """A framework whose knobs decide the plan.

    The plan that we predict is always the one that the framework will really form, ``realise(project(plan))``, not
    the solver's ideal; they differ wherever the knobs cannot say what the solver wants.

    meaning:       what its default plan is, in half a line
    default_knobs: () -> knobs                             what the framework does when nobody sets anything
    project:       (plan, workload, cost, limits) -> knobs the knobs that come closest; PlanError where none can
    realise:       (knobs, workload) -> plan               what the framework does with them
    config:        (knobs) -> JSON-ready dict
    render:        (knobs, workload) -> text               lines to paste
    complete:      (knobs, workload, cost, limits) -> knobs adds what only the final choice needs
    caveats:       (workload) -> sentences                 what a prediction for this framework takes for granted
    exact:         (plan, workload) -> knobs               those that form exactly this plan, else PlanError; for a
                                                           ``project`` that takes long, which gives the same for it
    executes:      whether it is an executor, which also knows several channels, cut tensors and no barrier
    """

    meaning: str
    default_knobs: Callable[[], Any]
    project: Callable[[Plan, Workload, Cost, Limits], Any]
    realise: Callable[[Any, Workload], Plan]
    config: Callable[[Any], dict[str, Any]]
    render: Callable[[Any, Workload], str]
    complete: Callable[[Any, Workload, Cost, Limits], Any] = lambda knobs, workload, cost, limits: knobs
    caveats: Callable[[Workload], tuple[str, ...]] = lambda workload: ()
    exact: Callable[[Plan, Workload], Any] | None = None
    executes: bool = False

    def forms(self, plan: Plan, workload: Workload) -> bool:
        """Whether some knobs make the framework form exactly this plan: buckets, order and release times."""
        try:
            knobs = self.exact(plan, workload) if self.exact else self.project(plan, workload, FREE, Limits())
        except PlanError:
            return False
        return self.realise(knobs, workload) == plan


def require_plain(plan: Plan, workload: Workload, framework: str) -> None:
    """Raise PlanError for what no framework without an executor does: several channels, cut tensors, no barrier."""
    if not plan.plain:
        raise PlanError(
            f"{framework} runs one collective at a time, whole, before the update: this plan needs an executor"
        )
    plan.require_valid(workload)
    if not _whole(plan, workload):
        raise PlanError(f"{framework} sends whole tensors: this plan cuts some, which needs an executor")


def _whole(plan: Plan, workload: Workload) -> bool:
    return sum(len(bucket.blocks) for bucket in plan.buckets) == len(workload.gradients)
