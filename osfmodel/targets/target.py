"""What a configuration target is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from osfmodel.cost import Cost
from osfmodel.plan import Plan
from osfmodel.workload import Workload


@dataclass(frozen=True, slots=True)
class Target:
    """A framework whose knobs decide the plan.

    The plan that we predict is always the one that the framework will really form, ``realise(project(plan))``, not
    the solver's ideal; they differ wherever the knobs cannot say what the solver wants.

    default_knobs: () -> knobs                             what the framework does when nobody sets anything
    project:       (plan, workload, cost) -> knobs         the knobs that come closest; PlanError where none can
    realise:       (knobs, workload, cost) -> plan         what the framework does with them
    config:        (knobs) -> JSON-ready dict
    render:        (knobs, workload) -> text               lines to paste
    """

    default_knobs: Callable[[], Any]
    project: Callable[[Plan, Workload, Cost], Any]
    realise: Callable[[Any, Workload, Cost], Plan]
    config: Callable[[Any], dict[str, Any]]
    render: Callable[[Any, Workload], str]
