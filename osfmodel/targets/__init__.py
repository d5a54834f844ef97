"""Configuration targets: CONFIG_TARGETS maps a framework's name to its Target.

To add one: a module with a TARGET and one line here. Its default knobs are at once a named plan of ``osf predict``,
and tests/conformance runs over the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from osfmodel.plan import Plan
from osfmodel.targets import ddp, deepspeed, horovod, megatron, runtime
from osfmodel.targets.target import Target
from osfmodel.workload import Workload

__all__ = ["CONFIG_TARGETS", "Target", "runs_on"]

CONFIG_TARGETS: Mapping[str, Target] = {
    "ddp": ddp.TARGET,
    "horovod": horovod.TARGET,
    "deepspeed": deepspeed.TARGET,
    "megatron": megatron.TARGET,
    "runtime": runtime.TARGET,
}


def runs_on(plan: Plan, workload: Workload) -> tuple[str, ...]:
    """The stock frameworks that can be set to carry out exactly this plan; none means that it needs an executor."""
    stock = {name: target for name, target in CONFIG_TARGETS.items() if not target.executes}
    return tuple(name for name, target in stock.items() if target.forms(plan, workload))
