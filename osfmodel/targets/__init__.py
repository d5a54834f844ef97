"""Configuration targets: CONFIG_TARGETS maps a framework's name to its Target.

To add one: a module with a TARGET and one line here. Its default knobs are at once a named plan of ``osf predict``
(but for a dialect, which has other lines for another's knobs), and tests/conformance runs over the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from osfmodel.plan import Plan
from osfmodel.targets import accelerate, byteps, ddp, deepspeed, fsdp2, horovod, lightning, megatron, runtime
from osfmodel.targets.target import Target
from osfmodel.workload import Workload

__all__ = ["CONFIG_TARGETS", "STOCK_TARGETS", "Target", "runs_on"]

CONFIG_TARGETS: Mapping[str, Target] = {
    "ddp": ddp.TARGET,
    "horovod": horovod.TARGET,
    "accelerate": accelerate.TARGET,
    "lightning": lightning.TARGET,
    "deepspeed": deepspeed.TARGET,
    "megatron": megatron.TARGET,
    "byteps": byteps.TARGET,
    "fsdp2": fsdp2.TARGET,
    "runtime": runtime.TARGET,
}
STOCK_TARGETS: Mapping[str, Target] = {
    name: target for name, target in CONFIG_TARGETS.items() if not target.executes and not target.dialect_of
}
"""Those with a rule of their own that are no executors: their defaults are named plans."""


def runs_on(plan: Plan, workload: Workload) -> tuple[str, ...]:
    """The stock frameworks that can be set to carry out exactly this plan; none means that it needs an executor."""
    return tuple(name for name, target in STOCK_TARGETS.items() if target.forms(plan, workload))
