"""What a user can name: a framework's settings or a plan, each turned into a plan and back.

To add one: a module with a TARGET and one line here. Its default knobs are at once a named plan of ``osf predict``
(but for a dialect, which has other lines for another's knobs), and tests/conformance runs over the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload
from osfmodel.targets import byteps, ddp, ddp_dialects, deepspeed, executor, fsdp2, horovod, megatron
from osfmodel.targets.target import Target

__all__ = ["CONFIG_TARGETS", "STOCK_TARGETS", "Target", "runs_on"]

CONFIG_TARGETS: Mapping[str, Target] = {
    "ddp": ddp.TARGET,
    "horovod": horovod.TARGET,
    "accelerate": ddp_dialects.ACCELERATE,
    "lightning": ddp_dialects.LIGHTNING,
    "deepspeed": deepspeed.TARGET,
    "megatron": megatron.TARGET,
    "byteps": byteps.TARGET,
    "fsdp2": fsdp2.TARGET,
    "runtime": executor.TARGET,
}
STOCK_TARGETS: Mapping[str, Target] = {
    name: target for name, target in CONFIG_TARGETS.items() if not target.executes and not target.dialect_of
}
"""Those with a rule of their own that are no executors: their defaults are named plans."""


def runs_on(plan: Plan, workload: Workload) -> tuple[str, ...]:
    """The stock frameworks that can be set to carry out exactly this plan; none means that it needs an executor."""
    return tuple(name for name, target in STOCK_TARGETS.items() if target.convert.forms(plan, workload))
