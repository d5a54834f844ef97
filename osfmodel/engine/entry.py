"""An engine: the row type of ENGINES."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.entities.plan import Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload


class Engine(NamedTuple):
    """An entry of ENGINES.

    carry_out: (workload, plan, pricing) -> Timeline; PlanError for a plan that it cannot model
    summary:   shown by ``osf list``
    seen:      the part of a pricing that it models: plans and bounds are made for that
    caveats:   assumptions of its predictions, beyond those of our engine
    plans:     those shown by default; empty for those that fit the rules asked for
    """

    carry_out: Callable[[Workload, Plan, Pricing], Timeline]
    summary: str
    seen: Callable[[Pricing], Pricing] = lambda pricing: pricing
    caveats: tuple[str, ...] = ()
    plans: tuple[str, ...] = ()
