"""Options that several commands share, and the values that they accept."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

from osfmodel.cli.app import PLAN, OneOf, warn
from osfmodel.cli.groups import Decorator
from osfmodel.cost import worker_counts
from osfmodel.engine.strategies import STRATEGIES
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import CostError, UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.lookup import require
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload
from osfmodel.targets import ALIASES, CONFIG_TARGETS

ANY = "any"
"""The value of --for that compares DDP, ZeRO, FSDP2 and HSDP."""
LARGEST_WORKER_COUNT = 10**7


def plan_option(said: str, metavar: str = "NAME|FILE") -> Decorator:
    """--plan, repeatable: a command is handed ``plan_names``, for :func:`named_or_file`."""
    return click.option("--plan", "plan_names", multiple=True, metavar=metavar, type=PLAN, help=said)


class TargetName(OneOf):
    """A key of CONFIG_TARGETS or another name of one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The key that is meant. Raises click.BadParameter for other names."""
        return super().convert(ALIASES.get(str(value).lower(), value), param, ctx)


def target_option(said: str, *also: str) -> Decorator:
    """--for: a command is handed ``target``, a key of CONFIG_TARGETS, or one of ``also``."""
    said = f"{said} 'osf list targets' shows all."
    names = TargetName([*CONFIG_TARGETS, *also])
    return click.option("--for", "target", type=names, metavar="TARGET", default="ddp", show_default=True, help=said)


def named_or_file(name: str, workload: Workload | None = None) -> str | tuple[str, Plan]:
    """The name of a plan, or a file's name and the plan in it. Raises UsageError, DataError."""
    from osfmodel.targets.named_plans import NAMED_PLANS, named_plan

    path = Path(name)
    if name not in NAMED_PLANS and (os.path.isfile(path) or path.name != name or path.suffix == ".json"):
        plan = profiles.load_plan(path, workload)
        require(plan.strategy, STRATEGIES, f"strategy in {name}:")
        return name, plan
    named_plan(name)
    return name


def parse_workers(text: str, cluster: Cluster) -> list[int]:
    """``"16"``, ``"4,8"`` or ``"4..64"`` as worker counts.

    A range holds the counts that ``cluster`` was measured with; where it serves any count, the doublings of its start,
    and its end. Raises UsageError, and CostError where the cluster was measured with none of a range.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:\.\.\s*([0-9]{1,9})\s*)?", part)
        if match is None:
            raise UsageError(f"--workers {text!r}: write counts such as 16, 4,8,16 or 4..64")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= LARGEST_WORKER_COUNT:
            order = "" if match[2] is None else ", the smaller first"
            raise UsageError(f"--workers {text!r}: write counts from 1 to {LARGEST_WORKER_COUNT}{order}")
        counts += [first] if match[2] is None else _range(first, last, cluster)
    return list(dict.fromkeys(counts))


def _range(first: int, last: int, cluster: Cluster) -> list[int]:
    doublings = []
    count = first
    while count < last:
        doublings.append(count)
        count *= 2
    doublings.append(last)
    measured = worker_counts(cluster)
    if not measured:
        return doublings
    inside = [count for count in measured if first <= count <= last]
    have = ", ".join(map(str, measured))
    if not inside:
        raise CostError(f"--workers {first}..{last}: cluster {cluster.name!r} was measured with {have}")
    left_out = [count for count in doublings if count not in measured]
    if left_out:
        missing = ", ".join(map(str, left_out))
        warn(f"--workers {first}..{last}: cluster {cluster.name!r} was measured with {have}; left out: {missing}")
    return inside
